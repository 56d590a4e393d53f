// Checks of a machine for the features that Sluice needs to run well; they change nothing.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace sluice::doctor {

struct DoctorCheck {
  std::string name;  // "io_uring", "memlock", ...
  bool ok = true;
  nlohmann::json value;  // the finding: a number of bytes, a word
  std::string detail;    // for people, one line
  std::string fix;       // one sentence; empty when ok
};

// storage_directory: where training would keep its state (a file of a few bytes is made and
// unlinked). Findings are values, never exceptions: a check that cannot be made is a failed check.
std::vector<DoctorCheck> run_checks(const std::string& storage_directory);

// The parts that read a text, apart for their tests.
// The bracketed word of /sys/kernel/mm/transparent_hugepage/enabled: "always [madvise] never"; ""
// if none.
std::string selected_word(const std::string& text);
// The instruction sets of /proc/cpuinfo's first "flags" (x86) or "Features" (Arm) line that matter
// here.
std::vector<std::string> cpu_features(const std::string& cpuinfo);

}  // namespace sluice::doctor

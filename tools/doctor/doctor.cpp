#include "tools/doctor/doctor.hpp"

#include <array>
#include <cmath>
#include <filesystem>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "base/json_text.hpp"
#include "base/units.hpp"
#include "tools/doctor/checks.hpp"

namespace sluice::doctor {
namespace {

using nlohmann::json;

void print(const DoctorCheck& check, bool as_json, std::ostream& out) {
  if (!as_json) {
    out << (check.ok ? "  ok    " : "  fail  ") << std::left << std::setw(14) << check.name
        << check.detail << '\n';
    if (!check.ok) out << "        fix: " << check.fix << '\n';
    return;
  }
  json event{{"event", "doctor"},
             {"check", check.name},
             {"ok", check.ok},
             {"value", check.value},
             {"detail", check.detail}};
  if (!check.ok) event["fix"] = check.fix;
  out << lenient_json_text(event) << '\n';
}

std::string rate_text(double bytes_per_s) {
  return format_bytes(static_cast<std::uint64_t>(bytes_per_s)) + "/s";
}

std::string giga(double value, const char* unit) {
  std::ostringstream text;
  text << std::setprecision(3) << value * 1e-9 << ' ' << unit;
  return text.str();
}

void print_profile(const planner::HardwareProfile& profile, std::ostream& out) {
  const auto line = [&](const char* name, const std::string& value) {
    out << "  " << std::left << std::setw(24) << name << value << '\n';
  };
  out << profile.cpu_name << ", " << profile.cores << " cores\n";
  line("memory, all cores", rate_text(profile.memory_bandwidth_bytes_per_s));
  line("copy, one core", rate_text(profile.single_core_copy_bytes_per_s));
  line("storage read", rate_text(profile.storage_read_bytes_per_s));
  line("storage write", rate_text(profile.storage_write_bytes_per_s));
  line("storage duplex", rate_text(profile.storage_duplex_bytes_per_s));
  line("storage latency", format_seconds(profile.storage_latency_s));
  line("matrix product fp32", giga(profile.gemm_f32_flops_per_s, "GFLOP/s"));
  line("matrix product bf16", giga(profile.gemm_bf16_flops_per_s, "GFLOP/s"));
  line("AdamW", giga(profile.adam_params_per_s, "G parameters/s"));
  line("launch", format_seconds(profile.launch_overhead_s));
  line("hand over", format_seconds(profile.hand_over_s));
  if (!profile.rank_links) return;
  line("two ranks, latency", format_seconds(profile.rank_links->latency_s));
  line("two ranks, each sends", rate_text(profile.rank_links->bytes_per_s));
  line("ranks of the node, all", rate_text(profile.rank_links->node_bytes_per_s));
}

void print_gpu(const planner::HardwareProfile& gpu, std::ostream& out) {
  const auto line = [&](const char* name, const std::string& value) {
    out << "  " << std::left << std::setw(24) << name << value << '\n';
  };
  out << gpu.cpu_name << '\n';
  line("memory", rate_text(gpu.memory_bandwidth_bytes_per_s));
  line("link, the slower way", rate_text(gpu.single_core_copy_bytes_per_s));
  line("matrix product fp32", giga(gpu.gemm_f32_flops_per_s, "GFLOP/s"));
  line("matrix product bf16", giga(gpu.gemm_bf16_flops_per_s, "GFLOP/s"));
  line("AdamW", giga(gpu.adam_params_per_s, "G parameters/s"));
  line("launch", format_seconds(gpu.launch_overhead_s));
  line("hand over", format_seconds(gpu.hand_over_s));
}

// Returns the saved profile if it is from this machine. Profiles of other machines are not
// compared.
std::optional<planner::HardwareProfile> saved_profile(const std::string& path,
                                                      const planner::HardwareProfile& measured) {
  try {
    if (!std::filesystem::exists(path)) return std::nullopt;
    planner::HardwareProfile saved = planner::load_profile(path);
    const auto gpu_name = [](const planner::HardwareProfile& profile) {
      return profile.gpu ? profile.gpu->cpu_name : std::string();
    };
    const bool same = saved.cpu_name == measured.cpu_name && saved.cores == measured.cores &&
                      gpu_name(saved) == gpu_name(measured);
    if (same) return saved;
  } catch (const InputError&) {  // damaged, or of another version: it is replaced
  } catch (const std::filesystem::filesystem_error&) {
  }
  return std::nullopt;
}

// One machine does not show the links between machines: those of a saved profile, which a person
// wrote there, stay.
void keep_network(planner::HardwareProfile& profile, const planner::HardwareProfile& saved) {
  if (!saved.rank_links) return;
  planner::RankLinks links = *saved.rank_links;
  if (profile.rank_links) {
    links.latency_s = profile.rank_links->latency_s;
    links.bytes_per_s = profile.rank_links->bytes_per_s;
    links.node_bytes_per_s = profile.rank_links->node_bytes_per_s;
  }
  profile.rank_links = links;
}

// Saves the profile unless a better one is saved; returns words for people.
std::string save(const DoctorOptions& options, planner::HardwareProfile& profile) {
  if (options.profile_path.empty()) return "profile not saved";
  auto saved = saved_profile(options.profile_path, profile);
  if (saved) keep_network(profile, *saved);
  const double ratio = saved ? rates_ratio(*saved, profile) : 0;
  if (ratio > kBetterProfile && !options.replaces_better) {
    std::ostringstream text;
    text << "the saved profile '" << options.profile_path << "' is kept: its rates are "
         << std::setprecision(3) << ratio
         << " times as high (a busy machine measures low); --replace saves the new one";
    if (!saved->rank_links && profile.rank_links) {
      saved->rank_links = profile.rank_links;
      planner::save_profile(*saved, options.profile_path);
    }
    return text.str();
  }
  planner::save_profile(profile, options.profile_path);
  return "profile saved in '" + options.profile_path + "'";
}

// Measures and saves. The text for people goes to `out` at once; the check remains to be
// reported.
DoctorCheck measure(const DoctorOptions& options, std::ostream& out, int& status) {
  DoctorCheck check{"measure", true, nullptr, "", ""};
  try {
    planner::HardwareProfile profile = measure_hardware(options.measure);
    check.value = parse_json(planner::to_json(profile));
    if (!options.json) print_profile(profile, out);
    if (!options.json && profile.gpu) print_gpu(*profile.gpu, out);
    check.detail = save(options, profile);
    check.value = parse_json(planner::to_json(profile));
    status = 0;
  } catch (const Error& error) {
    check.ok = false;
    check.detail = error.what();
    check.fix =
        "Name a storage directory and a profile file that can be written, with some disk space "
        "free.";
    // A profile that cannot be saved is bad input here, though saving it fails like any write.
    status = check.value.is_null() ? error.exit_status() : 2;
  }
  return check;
}

}  // namespace

double rates_ratio(const planner::HardwareProfile& saved,
                   const planner::HardwareProfile& measured) {
  using Profile = planner::HardwareProfile;
  constexpr std::array<double Profile::*, 7> rates{&Profile::memory_bandwidth_bytes_per_s,
                                                   &Profile::single_core_copy_bytes_per_s,
                                                   &Profile::storage_read_bytes_per_s,
                                                   &Profile::storage_write_bytes_per_s,
                                                   &Profile::gemm_f32_flops_per_s,
                                                   &Profile::gemm_bf16_flops_per_s,
                                                   &Profile::adam_params_per_s};
  double sum = 0;
  for (const auto rate : rates) sum += std::log(saved.*rate / measured.*rate);
  return std::exp(sum / static_cast<double>(rates.size()));
}

int run_doctor(const DoctorOptions& options, std::ostream& out) {
  for (const DoctorCheck& check : run_checks(options.measure.disk.directory)) {
    print(check, options.json, out);
  }
  int status = 0;
  print(measure(options, out, status), options.json, out);
  out.flush();
  return status;
}

}  // namespace sluice::doctor

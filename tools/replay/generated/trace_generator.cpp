#include "tools/replay/generated/trace_generator.hpp"

#include <array>
#include <string_view>

#include "base/error.hpp"
#include "tools/replay/generated/scenario.hpp"

namespace sluice::replay {
namespace {

struct Family {
  std::string_view name;
  void (*generate)(generated::TraceRecorder&, const GeneratorOptions&);
};

constexpr std::array<Family, 3> kFamilies{{
    {"dense", generated::generate_dense},
    {"zero3", generated::generate_zero3},
    {"moe", generated::generate_moe},
}};

}  // namespace

std::vector<std::string> generator_families() {
  std::vector<std::string> names;
  for (const Family& family : kFamilies) names.emplace_back(family.name);
  return names;
}

record::MemoryTrace generate_trace(const GeneratorOptions& options) {
  std::string known;
  for (const Family& family : kFamilies) {
    if (family.name == options.family) {
      generated::TraceRecorder recorder;
      family.generate(recorder, options);
      record::MemoryTrace trace = recorder.finish();
      trace.source = options.family + " seed " + std::to_string(options.seed);
      return trace;
    }
    if (!known.empty()) known += ", ";
    known += family.name;
  }
  throw InputError("trace generator: family '" + options.family + "' must be one of " + known);
}

}  // namespace sluice::replay

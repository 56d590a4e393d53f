// Any bytes as a CSV of ours or of RMM: a trace that holds together; ours is written back the same.
// The first byte chooses.
#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>
#include <string_view>

#include "allocator/record/format/memory_trace_csv.hpp"
#include "allocator/record/trace_from_snapshot.hpp"
#include "base/error.hpp"
#include "tests/support/check_trace.hpp"
#include "tools/replay/rmm_log.hpp"

namespace {

std::string written(const sluice::record::MemorySnapshot& snapshot) {
  std::ostringstream out;
  sluice::record::write_memory_trace_csv(snapshot, out);
  return out.str();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  try {
    sluice::record::ByteSource source({reinterpret_cast<const char*>(data) + 1, size - 1},
                                      "given.csv");
    const auto snapshot = data[0] % 2 == 0 ? sluice::record::read_memory_trace_csv(source)
                                           : sluice::replay::read_rmm_log(source);
    sluice::testing::check_trace(sluice::record::trace_of(snapshot, "given.csv", "sluice"));
    const std::string text = written(snapshot);
    sluice::record::ByteSource again(text, "again.csv");
    if (written(sluice::record::read_memory_trace_csv(again)) != text) __builtin_trap();
  } catch (const sluice::InputError&) {
  }
  return 0;
}

// Any bytes as a PyTorch snapshot: a trace that holds together, and that comes back the same from
// the snapshot as we write it; or an InputError.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "allocator/record/format/torch_snapshot.hpp"
#include "allocator/record/trace_from_snapshot.hpp"
#include "base/error.hpp"
#include "tests/support/check_trace.hpp"

namespace {

sluice::record::MemorySnapshot parse(std::string_view bytes) {
  sluice::record::ByteSource source(bytes, "given.pickle");
  const sluice::record::PickleTree tree =
      sluice::record::read_pickle(source, {.max_tree_bytes = std::uint64_t{256} << 20});
  return sluice::record::torch_snapshot(tree, "given.pickle");
}

std::string written(const sluice::record::MemorySnapshot& snapshot) {
  std::string bytes;
  sluice::record::write_torch_snapshot(snapshot, [&](std::string_view part) { bytes += part; });
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const auto snapshot = parse({reinterpret_cast<const char*>(data), size});
    const auto trace = sluice::record::trace_of(snapshot, "given.pickle", "torch");
    sluice::testing::check_trace(trace);
    const std::string bytes = written(snapshot);
    const auto again = parse(bytes);
    // Times become whole microseconds, and a last event may be added, the first time alone.
    if (again.segments.size() != snapshot.segments.size() ||
        written(again) != written(parse(written(again)))) {
      __builtin_trap();
    }
    if (sluice::record::trace_of(again, "given.pickle", "torch").operations.size() !=
        trace.operations.size()) {
      __builtin_trap();
    }
  } catch (const sluice::InputError&) {
  }
  return 0;
}

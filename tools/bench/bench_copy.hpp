// `sluice bench copy`: the link between host and device, and the cost of mapping physical memory.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

#include "base/units.hpp"
#include "device/device.hpp"

namespace sluice::bench {

struct CopyBenchOptions {
  device::Device* device = nullptr;
  std::uint64_t bytes = 256 * kMiB;  // a multiple of 64 MiB; size of each of four arrays
  int rounds = 9;                    // at least 7
};

// {"event":"bench","name":"copy","figures":{backend, device, bytes, rounds,
//   "copies":{"64KiB"|"1MiB"|"16MiB"|"64MiB": {to_device_gib_per_s, to_host_gib_per_s,
//     duplex_gib_per_s (both ways at once, counted together)}},
//   "handles":{"2MiB"|"32MiB"|"64MiB": {create_us, map_us, unmap_us, release_us}},
//   memcpy_gib_per_s (one host thread between the same pages), ratio_to_device (of 1 MiB copies to
//   memcpy; on the host device both are memcpy)}}
// Copies go between registered huge pages and device memory, in pieces of the named size, queued
// back to back. Figures are medians over rounds that measure all of them in turn.
// Throws InputError for bad options, OutOfMemory, DeviceError.
nlohmann::json run_copy_bench(const CopyBenchOptions& options);

}  // namespace sluice::bench

// Functions of the simulated driver for tests, next to the driver's own. Tests look them up in
// libcuda.so.1; a real one does not have them.
#pragma once

#include <cstdint>

extern "C" {

// Objects that were made and not released.
struct SluiceSimulatedObjects {
  std::uint64_t contexts, streams, events, blocks, mappings, ranges, buffers, registrations;
};
void sluice_simulator_objects(SluiceSimulatedObjects* objects);

// The call number `call` from now on (0: the next) of the function named, or of any where it is
// null, fails with `status`; forever: so do all later ones. call < 0: none fails. A function that
// releases something does its work and then fails, as a driver that reports an earlier failure;
// only cuMemUnmap does not.
void sluice_simulator_fail(const char* function, std::int64_t call, int status, int forever);
// Calls that were counted for that since it was set.
std::uint64_t sluice_simulator_calls(void);
// The fault of a kernel: nothing queued runs any more, and every call fails with the status, until
// it is set to 0 again (which a real GPU does only for a new process).
void sluice_simulator_fault(int status);
}

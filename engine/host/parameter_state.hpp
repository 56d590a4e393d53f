// The state of single parameters of a sealed session, read and written by elements.
//
// State on storage comes and goes by whole norm blocks of 4,096 elements, so a window of them is
// read, and written back where something has changed. 8-bit moments have codes and scales apart
// here, as in files.
#pragma once

#include <cstdint>
#include <functional>

#include "engine/host/sealed_session.hpp"
#include "engine/host/session_space.hpp"
#include "kernels/optimizer_options.hpp"

namespace sluice::host {

// The format of a parameter's state. kBlock8: codes of a byte each. Throws InputError if the
// parameter's rule keeps no such state.
kernels::StateLayout parameter_layout(const model::ParameterTable& table,
                                      const SessionParameter& parameter, KeptState state);

// Masters that are exactly the weights.
void store_masters(const kernels::OptimizerOptions& options, const std::byte* weights,
                   std::uint64_t elems, std::byte* masters);

// Elements [first, first + count) of the state. Throws InputError if the parameter has fewer, and
// errors of storage.
void read_parameter(SealedSession& session, const SessionParameter& parameter, KeptState state,
                    std::uint64_t first, std::uint64_t count, std::byte* into);
// A weight that is written sets its master, window by window. changing: called before anything
// changes.
void write_parameter(SealedSession& session, const SessionParameter& parameter, KeptState state,
                     std::uint64_t first, std::uint64_t count, const std::byte* from,
                     const std::function<void()>& changing);

}  // namespace sluice::host

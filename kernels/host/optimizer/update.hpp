// Kernels::update on the host: checks the arguments and calls the rule (rules.hpp).
#pragma once

#include <cstdint>
#include <span>

#include "kernels/optimizer.hpp"

namespace sluice::kernels::host {

class Parallel;
class ProductRule;

// muon: null where there are no matrix products; that rule is then refused (InputError).
std::uint64_t update_workspace_bytes(const ProductRule* muon, const OptimizerOptions& options,
                                     std::span<const ParameterSegment> segments);

// Arguments as in kernels/kernels.hpp. Throws InternalError for segments that leave [0, elems),
// overlap, or do not match the rule, and for formats that the rule does not support.
void update(const Parallel& parallel, const ProductRule* muon, const OptimizerOptions& options,
            const UpdateBuffers& buffers, std::span<const ParameterSegment> segments,
            const UpdateScalars& scalars, void* workspace);

}  // namespace sluice::kernels::host

// Proves that an order of passes can run.
#pragma once

#include <string>
#include <vector>

#include "engine/schedule/orders/pipeline_order.hpp"

namespace sluice::schedule {

// Returns problems, one sentence each, or nothing if these hold:
//
//  - each micro-batch passes each stage once: one forward pass, then one whole backward pass or its
//    two halves in order, all on the rank of the stage;
//  - if the order lists messages, it lists every one that crosses ranks, once at each end, after
//    the pass that makes it and before the one that needs it;
//  - with delayed updates, a version that a micro-batch reads is one that its stage has made by
//    then, of equally many micro-batches in each update;
//  - no rank waits for ever. Listed messages go through one lane for sends and one for receives of
//    each rank, in list order, and a send blocks until it is received.
std::vector<std::string> check_order(const PipelineOrder& order);

// Whether all stages sum their gradients in the order of micro-batches, as one rank does. If not,
// returns a sentence that names the first stage and micro-batch; else nothing. Precondition:
// check_order finds nothing.
std::string check_sum_order(const PipelineOrder& order);

}  // namespace sluice::schedule

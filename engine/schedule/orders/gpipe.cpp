#include "engine/schedule/orders/pass_lists.hpp"

namespace sluice::schedule {

// The backward passes go in the order of micro-batches too, as the sums of gradients ask. The paper
// goes back in reverse, which takes the same time.
PipelineOrder make_gpipe_order(std::int32_t ranks, std::int32_t microbatches) {
  return make_vertical_order(ranks, 1, microbatches);
}

}  // namespace sluice::schedule

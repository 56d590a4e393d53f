// The list of the fields of StepOptions, by the names that texts have for them. Keys, texts and
// checks of options follow it. A new member does not compile before it has a name here.
#pragma once

#include <cstdint>
#include <type_traits>
#include <vector>

#include "base/dtype.hpp"
#include "engine/schedule/compile/step_model.hpp"

namespace sluice::schedule {

struct StepField {
  const char* name;
  std::uint64_t least = 0;  // number; of a list: 1 if it may not be empty
  std::uint64_t multiple_of = 1;
};

// Calls visit(StepField, member) for each field, those of placement and recomputation included.
template <typename Options, typename Visit>
void for_each_field(Options& options, const Visit& visit) {
  // A structured binding names every member, so a new one is an error here. Each needs a line.
  auto& [microbatches, fold_groups, sum, bucket_elems, node_ranks, order, update, recompute,
         chunk_bytes, piece_elems, prefetch, weight_slots, stream_lookahead, update_piece_elems,
         update_lookahead, keeps_update_ring, carried_units, exchange_lag, recompute_ahead, turns,
         shares_device, durable, placement, stages] = options;
  auto& [weight, gradient, optimizer, activation, saved, partial] = placement;
  auto& [remade_units] = recompute;
  visit(StepField{"microbatches", 1}, microbatches);
  visit(StepField{"fold_groups", 1}, fold_groups);
  visit(StepField{"sum"}, sum);
  visit(StepField{"bucket_elems", 1}, bucket_elems);
  visit(StepField{"node_ranks"}, node_ranks);
  visit(StepField{"order"}, order);
  visit(StepField{"update"}, update);
  visit(StepField{"chunk_bytes", 1}, chunk_bytes);
  visit(StepField{"piece_elems", kLawBlockElems, kLawBlockElems}, piece_elems);
  visit(StepField{"prefetch"}, prefetch);
  visit(StepField{"weight_slots"}, weight_slots);
  visit(StepField{"stream_lookahead"}, stream_lookahead);
  visit(StepField{"update_piece_elems", 0, kLawBlockElems}, update_piece_elems);
  visit(StepField{"update_lookahead"}, update_lookahead);
  visit(StepField{"keeps_update_ring"}, keeps_update_ring);
  visit(StepField{"carried_units"}, carried_units);
  visit(StepField{"exchange_lag"}, exchange_lag);
  visit(StepField{"recompute_ahead"}, recompute_ahead);
  visit(StepField{"turns", 1}, turns);
  visit(StepField{"shares_device"}, shares_device);
  visit(StepField{"durable"}, durable);
  visit(StepField{"weight", 1}, weight);
  visit(StepField{"gradient", 1}, gradient);
  visit(StepField{"optimizer", 1}, optimizer);
  visit(StepField{"activation"}, activation);
  visit(StepField{"partial"}, partial);
  visit(StepField{"saved"}, saved);
  visit(StepField{"recompute"}, remade_units);
  visit(StepField{"stages"}, stages);
}

// Calls visit(StepField, number of entries) for each list by unit that does not go with so many
// units. A list that may be empty has no entry, or one for each unit; `saved` may end early.
template <typename Visit>
void for_each_misfit(const StepOptions& options, std::size_t units, const Visit& visit) {
  for_each_field(options, [&]<typename Value>(const StepField& field, const Value& value) {
    constexpr bool kMayEnd = std::is_same_v<Value, std::vector<std::vector<Tier>>>;
    if constexpr (std::is_same_v<Value, std::vector<Tier>> ||
                  std::is_same_v<Value, std::vector<UnitRecompute>> || kMayEnd) {
      const bool fits = value.size() == units || (value.empty() && field.least == 0) ||
                        (kMayEnd && value.size() < units);
      if (!fits) visit(field, value.size());
    }
  });
}

}  // namespace sluice::schedule

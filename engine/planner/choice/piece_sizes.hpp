// The sizes of the pieces in which state moves, and the depths of their rings.
//
// More and larger pieces in flight keep links and storage busy, and take pinned memory.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/schedule/compile/step_model.hpp"

namespace sluice::planner {

// The usual piece: about a sixteenth of the largest unit, and 1 to 4 MiB of fp32 state except in
// the largest models. A unit then has enough pieces to overlap, and a transfer is long enough for a
// storage device to approach its bandwidth with few transfers in flight.
std::uint64_t usual_piece_elems(const schedule::StepModel& model);
// The piece for plans that are short of memory.
std::uint64_t small_piece_elems(const schedule::StepModel& model);
// Doubles the pieces until the step has few enough instructions, or until each unit is one piece.
void grow_pieces(const schedule::StepModel& model, schedule::StepOptions& options);
// Sets the largest pieces and the deepest rings that take at most a small share of pinned memory.
void make_staging_roomy(const schedule::StepModel& model, std::uint64_t pinned_bytes,
                        schedule::StepOptions& options);

// The same options with other pieces for an update that storage feeds: many in a ring, the largest
// first. The last variant takes no more memory than the given options. Each variant costs time to
// plan, so this is for the chosen plan only.
std::vector<schedule::StepOptions> update_piece_variants(const schedule::StepModel& model,
                                                         const schedule::StepOptions& options);

}  // namespace sluice::planner

// Pieces are sized by the model's largest unit, and by the pinned memory that their rings take.
#include "engine/planner/choice/piece_sizes.hpp"

#include <algorithm>
#include <array>

#include "base/units.hpp"
#include "engine/planner/choice/candidates.hpp"
#include "engine/planner/choice/step_size.hpp"

namespace sluice::planner {
namespace {

// The fewest elements of a piece: 256 KiB of fp32 state.
constexpr std::uint64_t kLeastPieceElems = 65536;
// The same for 8-bit moments. Smaller pieces would begin inside a page of storage.
constexpr std::uint64_t kLeastBlock8PieceElems = 131072;
static_assert(bytes_of(DType::kBlock8, kLeastBlock8PieceElems) % 4096 == 0);
// The most pieces of a model. Each makes about a dozen instructions of a step, and the time to plan
// grows with them.
constexpr std::uint64_t kMostPieces = 32768;

// The elements that the rank updates, over all units.
std::uint64_t total_elems(const schedule::StepModel& model) {
  std::uint64_t total = 0;
  for (std::size_t unit = 0; unit < model.units.size(); ++unit) total += updated_elems(model, unit);
  return total;
}

// The least piece, doubled from `piece` on, that cuts the model into at most `most` pieces.
std::uint64_t few_pieces(const schedule::StepModel& model, std::uint64_t piece,
                         std::uint64_t most) {
  while (total_elems(model) / piece > most) piece *= 2;
  return piece;
}

// Pieces of an update that storage feeds: at least 2 MiB of fp32 state each if memory allows, the
// number of them in its ring, and the most pieces of a model, which bounds the time to plan.
// Activations that pass through the same lanes wait behind large pieces.
constexpr std::uint64_t kUpdatePieceElems = 8 * kLeastPieceElems;
constexpr std::uint64_t kUpdateRingPieces = 12;
constexpr std::uint64_t kMostUpdatePieces = 2048;
constexpr std::uint64_t kMostUpdatePiecesBesideSpills = 4096;
constexpr std::uint64_t kMostSmallUpdatePieces = 8192;

}  // namespace

std::uint64_t usual_piece_elems(const schedule::StepModel& model) {
  const std::uint64_t largest = largest_updated_elems(model);
  std::uint64_t piece = 4 * kLeastPieceElems;
  while (piece < 16 * kLeastPieceElems && piece * 16 < largest) piece *= 2;
  return few_pieces(model, piece, kMostPieces);
}

std::uint64_t small_piece_elems(const schedule::StepModel& model) {
  const std::uint64_t least =
      model.optimizer.moments == DType::kBlock8 ? kLeastBlock8PieceElems : kLeastPieceElems;
  return few_pieces(model, std::max(least, usual_piece_elems(model) / 4), kMostPieces);
}

void grow_pieces(const schedule::StepModel& model, schedule::StepOptions& options) {
  const std::uint64_t largest = largest_updated_elems(model);
  while (step_size(model, options) > kMostStepInstructions && options.piece_elems < largest) {
    options.piece_elems *= 2;
  }
}

// On a machine with one drive, a step of 7 B parameters that streams its optimizer state took 7.6 s
// with rings of three pieces of 1 M elements, 7.1 s with nine such pieces, and 6.8 s with nine of
// 4 M (simulated).
void make_staging_roomy(const schedule::StepModel& model, std::uint64_t pinned_bytes,
                        schedule::StepOptions& options) {
  struct Size {
    std::uint64_t times;  // the usual piece
    std::int32_t lookahead;
  };
  constexpr std::array<Size, 5> kSizes{{{4, 8}, {2, 8}, {2, 4}, {1, 8}, {1, 4}}};
  constexpr std::uint64_t kRingBytesPerElem = 13;  // of all rings together, for each piece of depth
  constexpr std::uint64_t kShare = 64;
  constexpr std::uint64_t kLeastPiecesPerUnit = 4;
  const std::uint64_t mean = total_elems(model) / model.units.size();
  for (const Size& size : kSizes) {
    const std::uint64_t piece = options.piece_elems * size.times;
    const auto depth = static_cast<std::uint64_t>(size.lookahead) + 1;
    if (size.times > 1 && piece * kLeastPiecesPerUnit > mean) continue;
    if (kRingBytesPerElem * piece * depth > pinned_bytes / kShare) continue;
    options.piece_elems = piece;
    options.stream_lookahead = size.lookahead;
    return;
  }
}

// A ring of three pieces of 256 K elements would take as many bytes. But a piece's memory is reused
// only when all of its writes have ended, and the storage device idles meanwhile: steps took up to
// a third longer.
std::vector<schedule::StepOptions> update_piece_variants(const schedule::StepModel& model,
                                                         const schedule::StepOptions& options) {
  const std::vector<Tier>& homes = options.placement.optimizer;
  const bool streams = std::find(homes.begin(), homes.end(), Tier::kStorage) != homes.end();
  // Rules for whole tensors update unit by unit and do not use pieces.
  if (kernels::needs_whole_tensors(model.optimizer)) return {};
  if (!streams || options.stream_lookahead == 0) return {};
  std::vector<schedule::StepOptions> variants;
  const auto add = [&](std::uint64_t elems, std::uint64_t ring) {
    schedule::StepOptions variant = options;
    variant.update_piece_elems = elems;
    variant.update_lookahead =
        std::max(options.stream_lookahead, static_cast<std::int32_t>(ring) - 1);
    variants.push_back(std::move(variant));
  };
  const std::uint64_t least =
      model.optimizer.moments == DType::kBlock8 ? kLeastBlock8PieceElems : kLeastPieceElems;
  const std::uint64_t small =
      std::min(few_pieces(model, least, kMostSmallUpdatePieces), options.piece_elems);
  const bool spills = schedule::spills_activations(options.placement, Tier::kStorage);
  const std::uint64_t large = few_pieces(
      model, kUpdatePieceElems, spills ? kMostUpdatePiecesBesideSpills : kMostUpdatePieces);
  // First twice as many. Lanes retire in order, and on a disk of several GB/s a ring of twelve was
  // read, updated and written in turns (docs/results).
  if (large > small) add(large, 2 * kUpdateRingPieces);
  for (std::uint64_t elems = large; elems > small; elems /= 2) add(elems, kUpdateRingPieces);
  // Last a ring that takes the bytes of three usual pieces.
  add(small, std::min(kUpdateRingPieces, options.piece_elems * 3 / small));
  return variants;
}

}  // namespace sluice::planner

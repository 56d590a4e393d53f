// Places by count inside a ring, and boxes that raise no peak.
//
// A stream stages its pieces one after another, so a ring needs no search: a piece takes the place
// of its class that has been free longest, or a new one if none is free. A place is as large as its
// largest piece. When no piece of the ring is left the stream has drained, and the ring begins
// anew. Such an episode of tens of pieces or tens of thousands becomes one box, from its first
// birth to its last release.
//
// A box takes more than the live bytes of its pieces while places in it are free. That costs
// nothing as long as the sum at that position stays below the largest sum, so `room_` holds the
// difference and each box pays from it. Episodes that can pay for the gap between them share a box.
// An episode that cannot pay becomes several boxes: runs of pieces in one place, each run as long
// as it can pay for. In the worst case each piece is a box.
#include "engine/schedule/compile/ring_boxes.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <queue>
#include <utility>

#include "base/error.hpp"
#include "base/units.hpp"

namespace sluice::schedule {
namespace {

using Index = std::uint32_t;

class RingMerger {
 public:
  RingMerger(std::span<const RingPiece> pieces, std::uint64_t alignment_bytes, MergedUnit unit)
      : unit_(unit) {
    pieces_.assign(pieces.begin(), pieces.end());
    for (RingPiece& piece : pieces_) {
      piece.life.bytes = round_up(piece.life.bytes, alignment_bytes);
    }
    result_.places.resize(pieces_.size());
    rank_starts();
    measure_room();
  }

  RingBoxes run() {
    std::vector<Index> order(pieces_.size());
    std::iota(order.begin(), order.end(), Index{0});
    std::stable_sort(order.begin(), order.end(), [this](Index a, Index b) {
      return std::pair(pieces_[a].ring, pieces_[a].life.lower) <
             std::pair(pieces_[b].ring, pieces_[b].life.lower);
    });
    std::size_t begin = 0;
    while (begin < order.size()) {
      const RingPiece& first = pieces_[order[begin]];
      if (first.ring < 0 || unit_ == MergedUnit::kPiece) {
        add_piece(order[begin++]);
        continue;
      }
      if (begin > 0 && first.ring != pieces_[order[begin - 1]].ring) whole_.reset();
      std::uint64_t drained = first.life.upper;
      std::size_t end = begin + 1;
      for (; end < order.size(); ++end) {
        const RingPiece& next = pieces_[order[end]];
        if (next.ring != first.ring || next.life.lower >= drained) break;
        drained = std::max(drained, next.life.upper);
      }
      merge_episode(std::span(order).subspan(begin, end - begin), drained);
      begin = end;
    }
    return std::move(result_);
  }

 private:
  // Positions at which something is born, by rank: [begin, end).
  struct Ranks {
    std::size_t begin, end;
  };
  struct PlaceInRing {
    std::uint64_t bytes = 0;
    std::vector<Index> pieces;  // one after another
  };

  // rank_before_[p]: the number of distinct starts before position p.
  void rank_starts() {
    std::uint64_t last = 0;
    for (const RingPiece& piece : pieces_) last = std::max(last, piece.life.upper);
    rank_before_.assign(last + 2, 0);
    for (const RingPiece& piece : pieces_) rank_before_[piece.life.lower + 1] = 1;
    std::partial_sum(rank_before_.begin(), rank_before_.end(), rank_before_.begin());
  }
  Ranks ranks(std::uint64_t lower, std::uint64_t upper) const {
    return {rank_before_[lower], rank_before_[upper]};
  }

  void measure_room() {
    const std::size_t count = rank_before_.back();
    std::vector<std::uint64_t> live(count + 1);  // first differences, which may wrap around
    for (const RingPiece& piece : pieces_) {
      const Ranks at = ranks(piece.life.lower, piece.life.upper);
      live[at.begin] += piece.life.bytes;
      live[at.end] -= piece.life.bytes;
    }
    std::partial_sum(live.begin(), live.end(), live.begin());
    const std::uint64_t most = *std::max_element(live.begin(), live.end());
    room_.resize(count);
    for (std::size_t r = 0; r < count; ++r) room_[r] = most - live[r];
    own_.resize(count + 1);
  }

  Index add_box(const packing::Lifetime& life) {
    result_.boxes.push_back(life);
    return static_cast<Index>(result_.boxes.size() - 1);
  }
  void add_piece(Index piece) { result_.places[piece] = {add_box(pieces_[piece].life), 0}; }

  // episode: pieces of one ring by birth, until it has drained.
  void merge_episode(std::span<const Index> episode, std::uint64_t drained) {
    const std::vector<PlaceInRing> places = places_by_count(episode);
    const std::uint64_t born = pieces_[episode.front()].life.lower;
    std::uint64_t bytes = 0;
    for (const PlaceInRing& place : places) bytes += place.bytes;
    if (unit_ == MergedUnit::kPlace || !pay_for_episode(episode, ranks(born, drained), bytes)) {
      for (const PlaceInRing& place : places) merge_place(place);
      return;
    }
    if (pieces_[episode.front()].apart) whole_.reset();
    whole_ = join(whole_, {born, drained, bytes});
    std::uint64_t offset = 0;
    for (const PlaceInRing& place : places) {
      for (const Index piece : place.pieces) result_.places[piece] = {*whole_, offset};
      offset += place.bytes;
    }
  }

  // Lengthens `box` to the end of `next`, if there is one, it is large enough, and there is room
  // for the gap between the two. Else adds a box. Returns the box that holds `next`.
  Index join(std::optional<Index> box, const packing::Lifetime& next) {
    if (box) {
      packing::Lifetime& run = result_.boxes[*box];
      const bool joins =
          next.bytes <= run.bytes && pay(ranks(run.upper, next.lower), run.bytes,
                                         ranks(next.lower, next.upper), run.bytes - next.bytes);
      if (joins) {
        run.upper = next.upper;
        return *box;
      }
    }
    return add_box(next);
  }

  std::vector<PlaceInRing> places_by_count(std::span<const Index> episode) const {
    using Free = std::pair<std::uint64_t, std::size_t>;  // (since when, place)
    using FreePlaces = std::priority_queue<Free, std::vector<Free>, std::greater<>>;
    std::vector<PlaceInRing> places;
    std::vector<std::pair<std::uint32_t, FreePlaces>> classes;
    for (const Index piece : episode) {
      const RingPiece& one = pieces_[piece];
      auto found = std::find_if(classes.begin(), classes.end(),
                                [&](const auto& each) { return each.first == one.piece_class; });
      if (found == classes.end()) {
        classes.emplace_back(one.piece_class, FreePlaces());
        found = std::prev(classes.end());
      }
      FreePlaces& free = found->second;
      std::size_t at = places.size();
      if (!free.empty() && free.top().first <= one.life.lower) {
        at = free.top().second;
        free.pop();
      } else {
        places.emplace_back();
      }
      places[at].bytes = std::max(places[at].bytes, one.life.bytes);
      places[at].pieces.push_back(piece);
      free.emplace(one.life.upper, at);
    }
    return places;
  }

  // Pays for a box of `whole` bytes instead of the pieces. Returns false if there is no room.
  bool pay_for_episode(std::span<const Index> episode, Ranks at, std::uint64_t whole) {
    std::fill(own_.begin() + static_cast<std::ptrdiff_t>(at.begin),
              own_.begin() + static_cast<std::ptrdiff_t>(at.end) + 1, 0);
    for (const Index piece : episode) {
      const packing::Lifetime& life = pieces_[piece].life;
      const Ranks lives = ranks(life.lower, life.upper);
      own_[lives.begin] += life.bytes;
      own_[lives.end] -= life.bytes;
    }
    std::uint64_t live = 0;
    for (std::size_t r = at.begin; r < at.end; ++r) {
      live += own_[r];
      own_[r] = whole - live;
      if (own_[r] > room_[r]) return false;
    }
    for (std::size_t r = at.begin; r < at.end; ++r) room_[r] -= own_[r];
    return true;
  }

  // Pays `bytes` at all ranks of the first range and `less` at those of the second.
  bool pay(Ranks first, std::uint64_t bytes, Ranks second, std::uint64_t less) {
    const auto fits = [this](Ranks at, std::uint64_t cost) {
      return std::all_of(room_.begin() + static_cast<std::ptrdiff_t>(at.begin),
                         room_.begin() + static_cast<std::ptrdiff_t>(at.end),
                         [cost](std::uint64_t room) { return room >= cost; });
    };
    if (!fits(first, bytes) || (less > 0 && !fits(second, less))) return false;
    for (std::size_t r = first.begin; r < first.end; ++r) room_[r] -= bytes;
    if (less == 0) return true;
    for (std::size_t r = second.begin; r < second.end; ++r) room_[r] -= less;
    return true;
  }

  void merge_place(const PlaceInRing& place) {
    std::optional<Index> box;
    for (const Index piece : place.pieces) {
      box = join(box, pieces_[piece].life);
      result_.places[piece] = {*box, 0};
    }
  }

  MergedUnit unit_;
  std::vector<RingPiece> pieces_;  // sizes rounded up
  std::vector<std::uint32_t> rank_before_;
  std::vector<std::uint64_t> room_;  // by rank: bytes below the largest sum
  std::vector<std::uint64_t> own_;   // by rank: scratch
  std::optional<Index> whole_;       // the box of the ring's last episode that is one
  RingBoxes result_;
};

}  // namespace

RingBoxes merge_rings(std::span<const RingPiece> pieces, std::uint64_t alignment_bytes,
                      MergedUnit unit) {
  SLUICE_CHECK(alignment_bytes > 0);
  if (pieces.empty()) return {};
  return RingMerger(pieces, alignment_bytes, unit).run();
}

}  // namespace sluice::schedule

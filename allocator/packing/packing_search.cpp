// Packing by orders: boxes are placed one after the other, each in a gap that fits.
//
// Dynamic storage allocation is NP-hard (Garey and Johnson, SR2). Greedy orders with best fit come
// within a few percent of the bound on training steps (Pisarchyk and Lee, "Efficient memory
// management for deep neural net inference", 2020: by size; Moffitt, "MiniMalloc", ASPLOS 2023: by
// contention). A local search over orders closes most of the remaining gap: it moves one box to
// another place in the best order, and keeps the new order if it is not worse. First fit from some
// order reaches every packing in which no box can sink, so the search space contains an optimum.
#include "allocator/packing/packing_search.hpp"

#include <algorithm>
#include <array>
#include <numeric>

#include "base/rng.hpp"

namespace sluice::packing {
namespace {

using Order = std::vector<std::uint32_t>;

// For each box, the largest sum of sizes that live at one position of its lifetime. A segment tree
// holds the maxima over positions.
std::vector<std::uint64_t> contention(std::span<const Box> boxes, std::int32_t position_count) {
  const auto width = static_cast<std::size_t>(position_count);
  std::vector<std::uint64_t> tree(2 * width + 1);
  // The leaves first hold differences. One below zero wraps around, and the prefix sum undoes it.
  for (const Box& box : boxes) {
    tree[width + static_cast<std::size_t>(box.lower)] += box.bytes;
    tree[width + static_cast<std::size_t>(box.upper)] -= box.bytes;
  }
  std::partial_sum(tree.begin() + position_count, tree.end(), tree.begin() + position_count);
  for (std::size_t i = width; i-- > 1;) tree[i] = std::max(tree[2 * i], tree[2 * i + 1]);
  std::vector<std::uint64_t> result;
  result.reserve(boxes.size());
  for (const Box& box : boxes) {
    std::uint64_t largest = 0;
    std::size_t left = width + static_cast<std::size_t>(box.lower);
    std::size_t right = width + static_cast<std::size_t>(box.upper);
    for (; left < right; left /= 2, right /= 2) {
      if (left % 2 == 1) largest = std::max(largest, tree[left++]);
      if (right % 2 == 1) largest = std::max(largest, tree[--right]);
    }
    result.push_back(largest);
  }
  return result;
}

class Search {
 public:
  Search(std::span<const Box> boxes, std::int32_t position_count, std::uint64_t target_bytes,
         std::uint64_t base_bytes)
      : boxes_(boxes),
        position_count_(position_count),
        target_bytes_(target_bytes),
        placed_(base_bytes, position_count, boxes.size()),
        offsets_bytes_(boxes.size()) {
    best_.capacity_bytes = std::numeric_limits<std::uint64_t>::max();
  }

  bool finished() const { return best_.capacity_bytes <= target_bytes_; }
  std::uint64_t work() const { return placed_.work(); }
  BoxPacking take_best() { return std::move(best_); }

  void try_greedy_orders(std::uint64_t work_budget);
  void improve(std::uint64_t work_budget);

 private:
  static constexpr std::size_t kGreedyOrders = 5;
  // Sorts by decreasing key, then by decreasing size, then by index.
  Order order_by(std::size_t which) const;
  // Places all boxes in `order`. Returns false, with some boxes not placed, as soon as one ends
  // above `limit_bytes`.
  bool place(const Order& order, Fit fit, std::uint64_t limit_bytes);
  // A copy of `order` with one box moved: a box that ends at the capacity moves towards the front,
  // or any box moves anywhere.
  Order neighbour(const Order& order, std::uint64_t draw) const;
  void keep(const Order& order, Fit fit);

  std::span<const Box> boxes_;
  std::int32_t position_count_;
  std::uint64_t target_bytes_;
  PlacedBoxes placed_;
  std::vector<std::uint64_t> offsets_bytes_;  // of the last place()
  std::uint64_t capacity_bytes_ = 0;          // of the last place()
  BoxPacking best_;
  Order best_order_;
  Fit best_fit_ = Fit::kBest;
};

Order Search::order_by(std::size_t which) const {
  std::vector<std::uint64_t> keys(boxes_.size());
  const std::vector<std::uint64_t> contentions =
      which == 4 ? contention(boxes_, position_count_) : std::vector<std::uint64_t>();
  // The product of bytes and positions saturates, because sizes reach 2^63.
  const auto area = [](std::uint64_t bytes, std::uint64_t length) {
    std::uint64_t product = 0;
    return __builtin_mul_overflow(bytes, length, &product)
               ? std::numeric_limits<std::uint64_t>::max()
               : product;
  };
  for (std::size_t i = 0; i < boxes_.size(); ++i) {
    const Box& box = boxes_[i];
    const auto length = static_cast<std::uint64_t>(box.upper - box.lower);
    switch (which) {
      case 0:
        keys[i] = box.bytes;
        break;
      case 1:
        keys[i] = area(box.bytes, length);
        break;
      case 2:
        keys[i] = static_cast<std::uint64_t>(position_count_ - box.lower);
        break;
      case 3:
        keys[i] = length;
        break;
      default:
        keys[i] = contentions[i];
        break;
    }
  }
  Order order(boxes_.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    if (keys[a] != keys[b]) return keys[a] > keys[b];
    if (boxes_[a].bytes != boxes_[b].bytes) return boxes_[a].bytes > boxes_[b].bytes;
    return a < b;
  });
  return order;
}

bool Search::place(const Order& order, Fit fit, std::uint64_t limit_bytes) {
  placed_.clear();
  capacity_bytes_ = 0;
  for (const std::uint32_t i : order) {
    const std::uint64_t offset = placed_.find_offset(boxes_[i], fit);
    capacity_bytes_ = std::max(capacity_bytes_, offset + boxes_[i].bytes);
    if (capacity_bytes_ > limit_bytes) return false;
    offsets_bytes_[i] = offset;
    placed_.insert(boxes_[i], offset);
  }
  return true;
}

void Search::keep(const Order& order, Fit fit) {
  best_.offsets_bytes = offsets_bytes_;
  best_.capacity_bytes = capacity_bytes_;
  best_order_ = order;
  best_fit_ = fit;
}

void Search::try_greedy_orders(std::uint64_t work_budget) {
  for (std::size_t which = 0; which < kGreedyOrders && !finished(); ++which) {
    const Order order = order_by(which);
    for (const Fit fit : {Fit::kBest, Fit::kFirst}) {
      const bool must = which == 0 && fit == Fit::kBest;
      if (finished()) return;
      if (!must && work() > work_budget) continue;
      if (place(order, fit, best_.capacity_bytes - 1)) keep(order, fit);
    }
  }
}

Order Search::neighbour(const Order& order, std::uint64_t draw) const {
  const std::size_t count = order.size();
  const auto low = static_cast<std::size_t>(draw & 0xffffffffu);
  const auto high = static_cast<std::size_t>(draw >> 34);
  std::size_t from = low % count;
  std::size_t to = high % count;
  if ((draw >> 32 & 3) != 0) {
    // The walk starts at a random place, so that each box at the capacity has its turn.
    const auto at_peak = [&](std::uint32_t i) {
      return best_.offsets_bytes[i] + boxes_[i].bytes == best_.capacity_bytes;
    };
    while (!at_peak(order[from])) from = (from + 1) % count;
    to = (draw >> 32 & 1) != 0 ? 0 : high % (from + 1);
  }
  Order changed = order;
  const auto begin = changed.begin();
  const auto a = static_cast<std::ptrdiff_t>(from);
  const auto b = static_cast<std::ptrdiff_t>(to);
  if (a < b) std::rotate(begin + a, begin + a + 1, begin + b + 1);
  if (b < a) std::rotate(begin + b, begin + a, begin + a + 1);
  return changed;
}

// Accepts a neighbour that is not worse, so that the search can cross plateaus. place() gives up at
// the first box above the best capacity, so most bad neighbours are cheap.
void Search::improve(std::uint64_t work_budget) {
  constexpr std::uint64_t kMaxRounds = 4096;  // with few boxes, the budget would last far longer
  const CounterRng rng(0, stream_of("allocator/packing"));
  for (std::uint64_t round = 0; round < kMaxRounds && !finished(); ++round) {
    if (work() > work_budget) return;
    const Order order = neighbour(best_order_, rng.bits(round));
    const Fit fit = round % 2 == 0 ? Fit::kFirst : best_fit_;
    if (place(order, fit, best_.capacity_bytes)) keep(order, fit);
  }
}

}  // namespace

BoxPacking search_packing(std::span<const Box> boxes, std::int32_t position_count,
                          std::uint64_t target_bytes, std::uint64_t work_budget,
                          std::uint64_t base_bytes) {
  Search search(boxes, position_count, target_bytes, base_bytes);
  search.try_greedy_orders(work_budget);
  if (boxes.size() > 1) search.improve(work_budget);
  return search.take_best();
}

}  // namespace sluice::packing

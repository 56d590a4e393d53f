// Random sequences of operations compared with std::vector, over the border between the inside and
// the heap.
#include "base/inline_vector.hpp"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "base/rng.hpp"

namespace sluice {
namespace {

using Few = InlineVector<std::uint32_t, 3>;
using Plain = std::vector<std::uint32_t>;

void expect_same(const Few& list, const Plain& plain) {
  ASSERT_EQ(list.size(), plain.size());
  ASSERT_EQ(list.empty(), plain.empty());
  ASSERT_TRUE(list == plain);
  ASSERT_EQ(Plain(list.begin(), list.end()), plain);
  if (!plain.empty()) {
    ASSERT_EQ(list.front(), plain.front());
    ASSERT_EQ(list.back(), plain.back());
  }
}

// One random operation on both lists.
void change(const CounterRng& random, std::uint64_t step, Few& list, Plain& plain) {
  const auto value = static_cast<std::uint32_t>(step);
  const std::uint64_t at = random.below(2 * step + 1, plain.size() + 1);
  const auto offset = static_cast<std::ptrdiff_t>(at);
  switch (random.below(2 * step, 9)) {
    case 0:
    case 1:
    case 2:
      list.push_back(value);
      plain.push_back(value);
      break;
    case 3:
      if (plain.empty()) break;
      list.pop_back();
      plain.pop_back();
      break;
    case 4:
      list.erase(list.begin() + offset, list.end());
      plain.erase(plain.begin() + offset, plain.end());
      break;
    case 5:
      list.shrink_to_fit();
      break;
    case 6: {
      Few other = list;
      other.push_back(value);
      expect_same(list, plain);
      list = std::move(other);
      plain.push_back(value);
      break;
    }
    case 7: {
      const Plain more(at, value);
      list.append(more.data(), more.size());
      plain.insert(plain.end(), more.begin(), more.end());
      if (plain.size() > 40) {
        list = {value};
        plain = {value};
      }
      break;
    }
    default: {
      const Few other(std::move(list));
      list = other;
      break;
    }
  }
}

TEST(InlineVector, IsAVector) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const CounterRng random(seed, stream_of("inline_vector"));
    Few list;
    Plain plain;
    for (std::uint64_t step = 0; step < 300; ++step) {
      change(random, step, list, plain);
      ASSERT_NO_FATAL_FAILURE(expect_same(list, plain)) << "seed " << seed << " step " << step;
    }
  }
}

TEST(InlineVector, AMovedListIsEmpty) {
  for (const Plain& content : {Plain{1, 2}, Plain{1, 2, 3, 4}}) {
    Few from(content);
    const Few to(std::move(from));
    EXPECT_TRUE(to == content);
    EXPECT_TRUE(from.empty());  // NOLINT(bugprone-use-after-move): that is the promise
  }
}

// Growth moves the element that is being added.
TEST(InlineVector, AnElementOfItsOwnIsAdded) {
  Few list{7, 8, 9};
  for (int i = 0; i < 20; ++i) list.push_back(list.front());
  EXPECT_EQ(list.back(), 7u);
  EXPECT_EQ(list.size(), 23u);
}

TEST(InlineVector, EqualElementsAreErased) {
  Few list{1, 2, 1, 3, 1};
  EXPECT_EQ(erase(list, 1u), 3u);
  EXPECT_TRUE(list == (Plain{2, 3}));
}

}  // namespace
}  // namespace sluice

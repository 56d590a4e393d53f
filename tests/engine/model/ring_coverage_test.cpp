// Which keys each query attends to in a ring, and where the gradients of keys come from, shown by
// the values.
//
// Every token has a component of its own in the vectors of a head. With scores of zero a query's
// output is the mean of the values that it saw. So the output names each key that was seen, and how
// often; the gradients of keys and values name the queries that contributed, and those of queries
// the keys.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "engine/model/ring_attention.hpp"
#include "tests/support/whole_model.hpp"

namespace sluice::model {
namespace {

using namespace testing;

constexpr float kTolerance = 1e-5f;

// One rank's rows, in memory of its own. Rows of q, k and v have one component for each token.
class RingRank {
 public:
  RingRank(const TensorShare& share, std::int64_t tokens)
      : tokens_(tokens),
        ring_(share, {1, tokens / share.contexts, 1, 1, tokens, DType::kF32}),
        qkv(floats(3)),
        out(floats(1)),
        lse(floats(1)),
        dout(floats(1)),
        dqkv(floats(3)) {
    for (const TensorShare::RowRun& run : share.row_runs({1, tokens / share.contexts})) {
      for (std::int64_t row = run.first; row < run.first + run.rows; ++row) {
        positions_.push_back(row);
      }
    }
    Region sizes;
    ring_.take_forward(sizes);
    ring_.take_backward(sizes);
    room_ = AlignedFloats(sizes.used_bytes());
    Region region(room_.bytes());
    forward_ = ring_.take_forward(region);
    backward_ = ring_.take_backward(region);
    scratch_ = AlignedFloats(std::uint64_t{1} << 20);
  }

  const std::vector<std::int64_t>& positions() const { return positions_; }
  float& at(AlignedFloats& rows, std::int64_t columns, std::size_t row, std::int64_t column) const {
    return rows.at()[static_cast<std::int64_t>(row) * columns * tokens_ + column];
  }
  // The component of each row's token is in q or in k, and the other is zero: so are the scores.
  void fill(bool in_queries) {
    for (std::size_t row = 0; row < positions_.size(); ++row) {
      const std::int64_t token = positions_[row];
      at(qkv, 3, row, (in_queries ? 0 : tokens_) + token) = 1;
      at(qkv, 3, row, 2 * tokens_ + token) = 1;
      at(dout, 1, row, token) = static_cast<float>(token + 1);
    }
  }
  void forward(kernels::Kernels& kernels, std::int64_t hop) {
    ring_.forward(kernels, hop, qkv.bytes(), forward_, lse.at(), out.bytes(), scratch_.bytes());
  }
  void start_backward(kernels::Kernels& kernels) {
    ring_.start_backward(kernels, qkv.bytes(), backward_);
  }
  void backward(kernels::Kernels& kernels, std::int64_t hop) {
    ring_.backward(kernels, hop, {dout.bytes(), qkv.bytes(), out.bytes(), lse.at()}, backward_,
                   dqkv.bytes(), scratch_.bytes());
  }
  std::vector<schedule::Cut> cuts(bool back, std::int64_t hop) const {
    return back ? ring_.backward_cuts(backward_, hop) : ring_.forward_cuts(forward_, 0);
  }
  std::byte* room() { return room_.bytes(); }

 private:
  AlignedFloats floats(std::int64_t vectors) const {
    return AlignedFloats(static_cast<std::uint64_t>(vectors * tokens_ * tokens_) * sizeof(float));
  }

  std::int64_t tokens_;
  RingAttention ring_;
  std::vector<std::int64_t> positions_;
  AlignedFloats room_, scratch_;
  RingAttention::Forward forward_;
  RingAttention::Backward backward_;

 public:
  AlignedFloats qkv, out, lse, dout, dqkv;
};

// Each cut's bytes go to the next rank.
void hop(std::vector<RingRank>& ranks, bool back, std::int64_t number) {
  for (const schedule::Cut& cut : ranks.front().cuts(back, number)) {
    std::vector<std::vector<std::byte>> sent;
    for (RingRank& rank : ranks) {
      const std::byte* from = rank.room() + cut.begin_bytes;
      sent.emplace_back(from, from + cut.bytes());
    }
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      const std::vector<std::byte>& bytes = sent[(rank + ranks.size() - 1) % ranks.size()];
      std::memcpy(ranks[rank].room() + cut.begin_bytes, bytes.data(), bytes.size());
    }
  }
}

void pass_keys(std::vector<RingRank>& ranks, kernels::Kernels& kernels) {
  const auto hops = static_cast<std::int64_t>(ranks.size()) - 1;
  for (std::int64_t number = 0; number <= hops; ++number) {
    if (number > 0) hop(ranks, false, number);
    for (RingRank& rank : ranks) rank.forward(kernels, number);
  }
}
void pass_gradients(std::vector<RingRank>& ranks, kernels::Kernels& kernels) {
  const auto hops = static_cast<std::int64_t>(ranks.size()) - 1;
  for (RingRank& rank : ranks) rank.start_backward(kernels);
  for (std::int64_t number = 1; number <= hops + 1; ++number) {
    hop(ranks, true, number);
    for (RingRank& rank : ranks) rank.backward(kernels, number);
  }
}

// The gradient of the score of this query and key, if the output's gradient is the query's
// component, as often as it sees keys.
float score_gradient(std::int64_t query, std::int64_t key) {
  if (key > query) return 0;
  return (query == key ? 1.0f : 0.0f) - 1.0f / static_cast<float>(query + 1);
}

TEST(RingCoverage, EachQuerySeesEachKeyOnceAndEachGradientComesHomeOnce) {
  const auto kernels = kernels::make_host_kernels({1});
  for (const std::int64_t count : {2, 3, 4, 8}) {
    const std::int64_t tokens = 4 * count;
    const float scale = 1.0f / std::sqrt(static_cast<float>(tokens));
    for (const bool in_queries : {true, false}) {
      SCOPED_TRACE(std::to_string(count) + (in_queries ? " ranks, queries" : " ranks, keys"));
      std::vector<RingRank> ranks;
      for (std::int64_t rank = 0; rank < count; ++rank) {
        ranks.emplace_back(TensorShare{0, 1, false, count, rank, true}, tokens);
        ranks.back().fill(in_queries);
      }
      pass_keys(ranks, *kernels);
      for (RingRank& rank : ranks) {
        for (std::size_t row = 0; row < rank.positions().size(); ++row) {
          const std::int64_t query = rank.positions()[row];
          for (std::int64_t key = 0; key < tokens; ++key) {
            const float mean = key <= query ? 1.0f / static_cast<float>(query + 1) : 0.0f;
            ASSERT_NEAR(rank.at(rank.out, 1, row, key), mean, kTolerance)
                << "query " << query << ", key " << key;
          }
        }
      }
      pass_gradients(ranks, *kernels);
      for (RingRank& rank : ranks) {
        for (std::size_t row = 0; row < rank.positions().size(); ++row) {
          const std::int64_t own = rank.positions()[row];
          for (std::int64_t other = 0; other < tokens; ++other) {
            SCOPED_TRACE("token " + std::to_string(own) + ", other " + std::to_string(other));
            const float query = in_queries ? 0 : scale * score_gradient(own, other);
            const float key = in_queries ? scale * score_gradient(other, own) : 0;
            ASSERT_NEAR(rank.at(rank.dqkv, 3, row, other), query, kTolerance);
            ASSERT_NEAR(rank.at(rank.dqkv, 3, row, tokens + other), key, kTolerance);
            ASSERT_NEAR(rank.at(rank.dqkv, 3, row, 2 * tokens + other), own <= other ? 1.0f : 0.0f,
                        kTolerance);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace sluice::model

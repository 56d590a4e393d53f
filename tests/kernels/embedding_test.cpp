#include "kernels/host/embedding.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "tests/support/dtype_array.hpp"

namespace sluice::kernels::host {
namespace {

struct Shape {
  std::int64_t rows, time, vocab, max_time, hidden;
};
// Odd sizes; a vocabulary smaller than a piece and larger; hidden across tiles of 256.
const Shape kEmbeddingShapes[] = {
    {1, 1, 1, 1, 1}, {30, 10, 7, 12, 33}, {96, 32, 300, 32, 260}, {40, 40, 1000, 64, 600}};

// Some tokens often, most never.
std::vector<std::int32_t> tokens_of(const Shape& shape) {
  std::mt19937 engine(1);
  std::vector<std::int32_t> tokens;
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    const auto any = static_cast<std::int64_t>(engine() % static_cast<unsigned>(shape.vocab));
    tokens.push_back(static_cast<std::int32_t>(row % 3 == 0 ? shape.vocab - 1 : any));
  }
  return tokens;
}

class EmbeddingOf : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(DTypes, EmbeddingOf,
                         ::testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                         [](const auto& variant) {
                           return std::string(dtype_name(variant.param));
                         });

TEST_P(EmbeddingOf, ForwardAddsThePositionOfTheRow) {
  for (const Shape& shape : kEmbeddingShapes) {
    const std::vector<std::int32_t> tokens = tokens_of(shape);
    const DTypeArray table(GetParam(), normal_floats(shape.vocab * shape.hidden, 2));
    const DTypeArray positions(GetParam(), normal_floats(shape.max_time * shape.hidden, 3));
    for (const bool with_positions : {false, true}) {
      const DTypeArray out = same_bits_everywhere([&](const Parallel& parallel) {
        DTypeArray rows(GetParam(), shape.rows * shape.hidden);
        embedding_forward(parallel, tokens.data(), table.data(),
                          with_positions ? positions.data() : nullptr, rows.data(), shape.rows,
                          shape.time, shape.hidden, GetParam());
        return rows;
      });
      DTypeArray want(GetParam(), shape.rows * shape.hidden);
      for (std::int64_t i = 0; i < shape.rows * shape.hidden; ++i) {
        const std::int64_t row = i / shape.hidden, c = i % shape.hidden;
        const std::int64_t token = tokens[static_cast<std::size_t>(row)];
        float value = table[static_cast<std::size_t>(token * shape.hidden + c)];
        if (with_positions) {
          value += positions[static_cast<std::size_t>(row % shape.time * shape.hidden + c)];
        }
        want.set(static_cast<std::size_t>(i), value);
      }
      EXPECT_TRUE(out == want) << shape.rows;
    }
  }
}

struct Gradients {
  DTypeArray table, positions;
};

Gradients backward(const Parallel& parallel, const Shape& shape, DType dtype,
                   const std::vector<std::int32_t>& tokens, const DTypeArray& dout,
                   bool with_positions) {
  Gradients out{DTypeArray(dtype, shape.vocab * shape.hidden),
                DTypeArray(dtype, shape.max_time * shape.hidden)};
  std::vector<std::uint8_t> workspace(embedding_backward_workspace_bytes(shape.rows, shape.vocab));
  embedding_backward(parallel, tokens.data(), dout.data(), out.table.data(),
                     with_positions ? out.positions.data() : nullptr, shape.rows, shape.time,
                     shape.vocab, shape.max_time, shape.hidden, dtype, workspace.data());
  return out;
}

// Adds row by row in fp32 and rounds once: the kernel must give these very bits, zeros included.
Gradients row_by_row(const Shape& shape, DType dtype, const std::vector<std::int32_t>& tokens,
                     const DTypeArray& dout) {
  std::vector<float> table(static_cast<std::size_t>(shape.vocab * shape.hidden));
  std::vector<float> positions(static_cast<std::size_t>(shape.max_time * shape.hidden));
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    for (std::int64_t c = 0; c < shape.hidden; ++c) {
      const float value = dout[static_cast<std::size_t>(row * shape.hidden + c)];
      const std::int64_t token = tokens[static_cast<std::size_t>(row)];
      table[static_cast<std::size_t>(token * shape.hidden + c)] += value;
      positions[static_cast<std::size_t>(row % shape.time * shape.hidden + c)] += value;
    }
  }
  return {DTypeArray(dtype, table), DTypeArray(dtype, positions)};
}

TEST_P(EmbeddingOf, BackwardSumsInRowOrderAndZerosTheRest) {
  for (const Shape& shape : kEmbeddingShapes) {
    const std::vector<std::int32_t> tokens = tokens_of(shape);
    const DTypeArray dout(GetParam(), normal_floats(shape.rows * shape.hidden, 4));
    const Gradients want = row_by_row(shape, GetParam(), tokens, dout);
    on_every_target([&](const Parallel& parallel, const std::string& name) {
      const Gradients both = backward(parallel, shape, GetParam(), tokens, dout, true);
      EXPECT_TRUE(both.table == want.table) << name << " " << shape.rows;
      EXPECT_TRUE(both.positions == want.positions) << name << " " << shape.rows;
    });
    EXPECT_TRUE(backward(Parallel(2), shape, GetParam(), tokens, dout, false).table == want.table);
  }
}

TEST_P(EmbeddingOf, BackwardOfNoRowsIsZero) {
  const Shape shape{0, 4, 5, 4, 6};
  const Gradients both =
      backward(Parallel(1), shape, GetParam(), {}, DTypeArray(GetParam(), 0), true);
  for (std::size_t i = 0; i < both.table.size(); ++i) EXPECT_EQ(both.table[i], 0.0f);
  for (std::size_t i = 0; i < both.positions.size(); ++i) EXPECT_EQ(both.positions[i], 0.0f);
}

TEST(Embedding, BackwardRefusesTokensOutsideTheVocabulary) {
  const Shape shape{2, 2, 5, 4, 6};
  const DTypeArray dout(DType::kF32, normal_floats(12, 5));
  for (const std::int32_t wrong : {-1, 5}) {
    EXPECT_THROW(backward(Parallel(1), shape, DType::kF32, {0, wrong}, dout, true), InternalError);
  }
}

TEST(Embedding, BackwardRefusesSequencesLongerThanThePositions) {
  const Shape shape{5, 5, 5, 4, 6};
  const DTypeArray dout(DType::kF32, normal_floats(30, 6));
  EXPECT_THROW(backward(Parallel(1), shape, DType::kF32, {0, 1, 2, 3, 4}, dout, true),
               InternalError);
}

}  // namespace
}  // namespace sluice::kernels::host

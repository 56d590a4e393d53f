// Embeddings, as every implementation of Kernels computes them: to the bit.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "base/error.hpp"
#include "tests/contract/kernels_contract.hpp"

namespace sluice::testing {

struct EmbeddingShape {
  std::int64_t rows, time, vocab, max_time, hidden;
};

// Half of the tokens are one, as in a text; most of a large vocabulary never occur.
struct EmbeddingBatch {
  EmbeddingShape shape;
  DTypeArray table, positions, dout;
  std::vector<std::int32_t> tokens;

  EmbeddingBatch(const EmbeddingShape& s, DType dtype)
      : shape(s),
        table(dtype, normal_floats(s.vocab * s.hidden, 1)),
        positions(dtype, normal_floats(s.max_time * s.hidden, 2)),
        dout(dtype, normal_floats(s.rows * s.hidden, 3)) {
    std::mt19937 engine(7);
    for (std::int64_t row = 0; row < s.rows; ++row) {
      const auto any = static_cast<std::int64_t>(engine() % static_cast<unsigned>(s.vocab));
      tokens.push_back(static_cast<std::int32_t>(engine() % 2 == 0 ? s.vocab / 2 : any));
    }
    if (s.rows > 1) tokens.back() = static_cast<std::int32_t>(s.vocab - 1);
  }
  // body(element of rows, element of the table, element of the positions)
  template <class Body>
  void for_elements(const Body& body) const {
    for (std::int64_t i = 0; i < shape.rows * shape.hidden; ++i) {
      const std::int64_t row = i / shape.hidden, c = i % shape.hidden;
      const std::int64_t token = tokens[static_cast<std::size_t>(row)];
      body(static_cast<std::size_t>(i), static_cast<std::size_t>(token * shape.hidden + c),
           static_cast<std::size_t>(row % shape.time * shape.hidden + c));
    }
  }
};

struct EmbeddingGradients {
  DTypeArray table, positions;
  bool operator==(const EmbeddingGradients&) const = default;
};

template <class Backend>
EmbeddingGradients embedding_backward(Kernels& kernels, const EmbeddingBatch& in,
                                      bool with_positions) {
  const EmbeddingShape& s = in.shape;
  const DType dtype = in.dout.type();
  BackendNumbers<Backend, std::int32_t> tokens(in.tokens);
  BackendArray<Backend> dout(in.dout), table(dtype, s.vocab * s.hidden);
  BackendArray<Backend> positions(in.positions);
  typename Backend::Memory workspace(kernels.embedding_backward_workspace_bytes(s.rows, s.vocab));
  kernels.embedding_backward(tokens.data(), kernels::all_tokens(s.vocab), dout.data(), table.data(),
                             with_positions ? positions.data() : nullptr, s.rows, s.time,
                             s.max_time, s.hidden, dtype, workspace.data());
  return {table.read(), positions.read()};
}

template <class Backend>
class EmbeddingContract : public KernelsContract<Backend> {
 protected:
  // Odd sizes; a vocabulary smaller than a piece and larger; hidden across tiles of 256.
  template <class Check>
  static void for_each_batch(const Check& check) {
    constexpr EmbeddingShape kShapes[] = {
        {1, 1, 1, 1, 1},        {1, 1, 1, 1, 8},         {30, 10, 7, 12, 33},
        {96, 32, 300, 32, 260}, {40, 40, 1000, 64, 600}, {48, 16, 40, 20, 24},
        {35, 7, 3000, 7, 33},   {600, 60, 5, 64, 16},    {0, 4, 5, 4, 6}};
    for (const DType dtype : kActDTypes) {
      for (const EmbeddingShape& shape : kShapes) {
        const EmbeddingBatch in(shape, dtype);
        for (const bool with_positions : {false, true}) {
          SCOPED_TRACE(std::to_string(shape.rows) + " rows of " + std::to_string(shape.hidden));
          check(in, with_positions);
        }
      }
    }
  }
};
TYPED_TEST_SUITE_P(EmbeddingContract);

TYPED_TEST_P(EmbeddingContract, ForwardAddsThePositionOfTheRow) {
  this->for_each_batch([&](const EmbeddingBatch& in, bool with_positions) {
    const EmbeddingShape& s = in.shape;
    const DType dtype = in.table.type();
    DTypeArray want(dtype, s.rows * s.hidden);
    in.for_elements([&](std::size_t i, std::size_t of_table, std::size_t of_position) {
      const float position = with_positions ? in.positions[of_position] : 0.0f;
      want.set(i, in.table[of_table] + position);
    });
    this->everywhere(
        [&](const Variation& at) {
          BackendNumbers<TypeParam, std::int32_t> tokens(in.tokens);
          BackendArray<TypeParam> table(in.table), positions(in.positions);
          BackendArray<TypeParam> out(dtype, s.rows * s.hidden, at.offset);
          at.kernels.embedding_forward(tokens.data(), kernels::all_tokens(s.vocab), table.data(),
                                       with_positions ? positions.data() : nullptr, out.data(),
                                       s.rows, s.time, s.hidden, dtype);
          return out.read();
        },
        [&](const DTypeArray& got) { EXPECT_TRUE(got == want); });
  });
}

// Row by row in fp32, rounded once; zeros where no row is. Positions that are not wanted stay.
TYPED_TEST_P(EmbeddingContract, BackwardSumsInRowOrderAndZerosTheRest) {
  this->for_each_batch([&](const EmbeddingBatch& in, bool with_positions) {
    std::vector<float> table(in.table.size()), positions(in.positions.size());
    in.for_elements([&](std::size_t i, std::size_t of_table, std::size_t of_position) {
      table[of_table] += in.dout[i];
      positions[of_position] += in.dout[i];
    });
    const DType dtype = in.dout.type();
    const DTypeArray want_positions(dtype, positions);
    const EmbeddingGradients want{DTypeArray(dtype, table),
                                  with_positions ? want_positions : in.positions};
    this->everywhere(
        [&](const Variation& at) {
          return embedding_backward<TypeParam>(at.kernels, in, with_positions);
        },
        [&](const EmbeddingGradients& got) { EXPECT_TRUE(got == want); });
  });
}

TYPED_TEST_P(EmbeddingContract, BackwardStopsAtTokensOutsideTheVocabulary) {
  if (!TypeParam::kFindsWrongTokens) GTEST_SKIP() << "the whole process would lose its GPU";
  for (const std::int32_t wrong : {-1, 5}) {
    EmbeddingBatch in({2, 2, 5, 4, 6}, DType::kF32);
    in.tokens = {0, wrong};
    EXPECT_THROW(embedding_backward<TypeParam>(this->kernels(), in, true),
                 typename TypeParam::WrongToken);
  }
}

TYPED_TEST_P(EmbeddingContract, BackwardRefusesSequencesLongerThanThePositions) {
  const EmbeddingBatch in({5, 5, 5, 4, 6}, DType::kF32);
  EXPECT_THROW(embedding_backward<TypeParam>(this->kernels(), in, true), InternalError);
}

// Rows of tokens that another part has count as zero, and bring nothing to this part's gradient.
TYPED_TEST_P(EmbeddingContract, PartsOfTheTableAreThoseOfTheWhole) {
  this->for_each_batch([&](const EmbeddingBatch& in, bool with_positions) {
    const EmbeddingShape& s = in.shape;
    if (s.vocab < 3) return;
    const DType dtype = in.table.type();
    const kernels::TokenRange range{1, s.vocab / 2, s.vocab};
    const auto begin = static_cast<std::size_t>(range.first * s.hidden);
    const auto part_of = [&](const DTypeArray& whole) {
      DTypeArray part(dtype, range.count * s.hidden);
      for (std::size_t i = 0; i < part.size(); ++i) part.set(i, whole[begin + i]);
      return part;
    };
    const DTypeArray table = part_of(in.table);
    DTypeArray want(dtype, s.rows * s.hidden);
    in.for_elements([&](std::size_t i, std::size_t of_table, std::size_t of_position) {
      const bool has = of_table >= begin && of_table < begin + table.size();
      const float position = with_positions ? in.positions[of_position] : 0.0f;
      want.set(i, (has ? in.table[of_table] : 0.0f) + position);
    });
    BackendNumbers<TypeParam, std::int32_t> tokens(in.tokens);
    BackendArray<TypeParam> rows(table), positions(in.positions), dout(in.dout);
    BackendArray<TypeParam> out(dtype, s.rows * s.hidden), dtable(dtype, range.count * s.hidden);
    Kernels& kernels = this->kernels();
    kernels.embedding_forward(tokens.data(), range, rows.data(),
                              with_positions ? positions.data() : nullptr, out.data(), s.rows,
                              s.time, s.hidden, dtype);
    EXPECT_TRUE(out.read() == want);
    typename TypeParam::Memory workspace(
        kernels.embedding_backward_workspace_bytes(s.rows, range.count));
    kernels.embedding_backward(tokens.data(), range, dout.data(), dtable.data(), nullptr, s.rows,
                               s.time, s.max_time, s.hidden, dtype, workspace.data());
    const EmbeddingGradients whole = embedding_backward<TypeParam>(kernels, in, false);
    EXPECT_TRUE(dtable.read() == part_of(whole.table));
  });
}

REGISTER_TYPED_TEST_SUITE_P(EmbeddingContract, ForwardAddsThePositionOfTheRow,
                            BackwardSumsInRowOrderAndZerosTheRest,
                            BackwardStopsAtTokensOutsideTheVocabulary,
                            BackwardRefusesSequencesLongerThanThePositions,
                            PartsOfTheTableAreThoseOfTheWhole);

}  // namespace sluice::testing

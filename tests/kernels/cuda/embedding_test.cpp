#include "kernels/cuda/embedding.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "tests/kernels/cuda/host_results.hpp"

namespace sluice::kernels::cuda {
namespace {

using host::DTypeArray;
using host::normal_floats;

using CudaEmbedding = CudaKernelTestOf;
INSTANTIATE_TEST_SUITE_P(DTypes, CudaEmbedding, act_dtypes(), dtype_of_test);

struct EmbeddingCase {
  std::int64_t rows, time, vocab, max_time, hidden;
};
constexpr EmbeddingCase kCases[] = {
    {1, 1, 1, 1, 8}, {48, 16, 40, 20, 24}, {35, 7, 3000, 7, 33}, {600, 60, 5, 64, 16}};

// Half of them one token, as in a text.
std::vector<std::int32_t> random_tokens(std::int64_t rows, std::int64_t vocab) {
  std::mt19937 engine(7);
  std::uniform_int_distribution<std::int32_t> any(0, static_cast<std::int32_t>(vocab) - 1);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(rows));
  for (std::int32_t& token : tokens) {
    token = engine() % 2 == 0 ? static_cast<std::int32_t>(vocab) / 2 : any(engine);
  }
  return tokens;
}

TEST_P(CudaEmbedding, ForwardIsTheHostsToTheBit) {
  for (const EmbeddingCase& at : kCases) {
    for (const bool with_positions : {false, true}) {
      const std::vector<std::int32_t> tokens = random_tokens(at.rows, at.vocab);
      const kernels::host::DTypeArray table(GetParam(),
                                            kernels::host::normal_floats(at.vocab * at.hidden, 1));
      const kernels::host::DTypeArray positions(
          GetParam(), kernels::host::normal_floats(at.max_time * at.hidden, 2));
      kernels::host::DTypeArray want(GetParam(), at.rows * at.hidden);
      host_kernels().embedding_forward(tokens.data(), table.data(),
                                       with_positions ? positions.data() : nullptr, want.data(),
                                       at.rows, at.time, at.hidden, GetParam());
      const DeviceArray<std::int32_t> device_tokens(tokens);
      const DeviceDTypeArray device_table(table), device_positions(positions);
      DeviceDTypeArray out(GetParam(), at.rows * at.hidden);
      embedding_forward(nullptr, device_tokens.data(), device_table.data(),
                        with_positions ? device_positions.data() : nullptr, out.data(), at.rows,
                        at.time, at.hidden, GetParam());
      EXPECT_TRUE(out.read() == want) << at.rows;
    }
  }
}

TEST_P(CudaEmbedding, BackwardSumsInRowOrderToTheBit) {
  for (const EmbeddingCase& at : kCases) {
    for (const bool with_positions : {false, true}) {
      const std::vector<std::int32_t> tokens = random_tokens(at.rows, at.vocab);
      const kernels::host::DTypeArray dout(GetParam(),
                                           kernels::host::normal_floats(at.rows * at.hidden, 3));
      kernels::host::DTypeArray want_table(GetParam(), at.vocab * at.hidden);
      kernels::host::DTypeArray want_positions(GetParam(), at.max_time * at.hidden);
      std::vector<std::byte> scratch(
          host_kernels().embedding_backward_workspace_bytes(at.rows, at.vocab));
      host_kernels().embedding_backward(tokens.data(), dout.data(), want_table.data(),
                                        with_positions ? want_positions.data() : nullptr, at.rows,
                                        at.time, at.vocab, at.max_time, at.hidden, GetParam(),
                                        scratch.data());
      const DeviceArray<std::int32_t> device_tokens(tokens);
      const DeviceDTypeArray device_dout(dout);
      DeviceDTypeArray dtable(GetParam(), at.vocab * at.hidden);
      DeviceDTypeArray dpositions(GetParam(), at.max_time * at.hidden);
      DeviceBytes workspace(embedding_backward_workspace_bytes(at.rows, at.vocab));
      embedding_backward(nullptr, device_tokens.data(), device_dout.data(), dtable.data(),
                         with_positions ? dpositions.data() : nullptr, at.rows, at.time, at.vocab,
                         at.max_time, at.hidden, GetParam(), workspace.data());
      EXPECT_TRUE(dtable.read() == want_table) << at.rows << " rows";
      if (with_positions) {
        EXPECT_TRUE(dpositions.read() == want_positions) << at.rows << " rows";
      }
    }
  }
}

using CudaEmbeddingShape = CudaKernelTest;

TEST_F(CudaEmbeddingShape, RefusesASequenceLongerThanItsTable) {
  float any = 0.0f;
  std::int32_t token = 0;
  EXPECT_THROW(
      embedding_backward(nullptr, &token, &any, &any, &any, 1, 2, 1, 1, 1, DType::kF32, nullptr),
      InternalError);
}

#ifdef SLUICE_CUDA_EMULATION
// On a GPU a trap takes the whole process's context with it.
TEST_F(CudaEmbeddingShape, StopsAtATokenOutsideTheVocabulary) {
  for (const std::int32_t token : {-1, 3}) {
    const DeviceArray<std::int32_t> tokens(std::vector<std::int32_t>{0, token});
    const DeviceArray<float> dout(std::vector<float>(8, 1.0f));
    DeviceArray<float> dtable(3 * 4);
    DeviceBytes workspace(embedding_backward_workspace_bytes(2, 3));
    EXPECT_THROW(embedding_backward(nullptr, tokens.data(), dout.data(), dtable.data(), nullptr, 2,
                                    2, 3, 2, 4, DType::kF32, workspace.data()),
                 DeviceError);
  }
}
#endif

}  // namespace
}  // namespace sluice::kernels::cuda

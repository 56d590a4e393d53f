// Attention as graphs of cuDNN's frontend: what is computed, without a GPU to compute it on.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/cuda/fused_attention.hpp"

namespace cudnn_frontend::graph {
class Graph;
}

namespace sluice::kernels::cuda {

// Names of a graph's tensors.
enum CudnnTensor : std::int64_t {
  kQueryTensor = 1,
  kKeyTensor,
  kValueTensor,
  kOutTensor,
  kLseTensor,
  kDoutTensor,
  kDqueryTensor,
  kDkeyTensor,
  kDvalueTensor,
};

// Of a 16-bit dtype. Nothing is checked or built yet.
std::shared_ptr<cudnn_frontend::graph::Graph> forward_graph(const AttentionShape& shape);
// Of one slice, in arrays of the whole shape.
std::shared_ptr<cudnn_frontend::graph::Graph> backward_graph(const AttentionShape& shape,
                                                             const AttentionSlice& slice);

// Has the library compile deterministic kernels for the GPU of `handle` (a cudnnHandle_t), or,
// where that is null, for the one that the graph describes. Returns what the library says against
// it; empty: it has kernels, which need so many bytes to work in. Throws what the frontend throws.
std::string compile_graph(cudnn_frontend::graph::Graph& graph, void* handle,
                          std::uint64_t& workspace_bytes);

}  // namespace sluice::kernels::cuda

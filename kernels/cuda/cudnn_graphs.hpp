// Attention as graphs of cuDNN's frontend. Building a graph needs no GPU.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/cuda/fused_attention.hpp"

namespace cudnn_frontend::graph {
class Graph;
}

namespace sluice::kernels::cuda {

// Ids of a graph's tensors.
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

// The forward graph of a 16-bit shape. Nothing is checked or built yet.
std::shared_ptr<cudnn_frontend::graph::Graph> forward_graph(const AttentionShape& shape);
// The backward graph of one slice; its tensors lie in arrays of the whole shape.
std::shared_ptr<cudnn_frontend::graph::Graph> backward_graph(const AttentionShape& shape,
                                                             const AttentionSlice& slice);

// Compiles deterministic kernels for the GPU of `handle` (a cudnnHandle_t), or, if it is null, for
// the GPU that the graph describes. Returns the library's refusal; empty: it has kernels, and
// workspace_bytes is their need. Throws the exceptions of the frontend.
std::string compile_graph(cudnn_frontend::graph::Graph& graph, void* handle,
                          std::uint64_t& workspace_bytes);

}  // namespace sluice::kernels::cuda

// Attention with cuDNN's fused kernels, through its frontend. The frontend's headers take most of a
// minute to compile, so only this file includes them.
//
// A graph describes a pass: the strides make it read q, k and v from the packed qkv rows in place.
// The first call of a shape builds the graph, excludes nondeterministic kernels, compiles it, and
// checks its workspace against fused_attention_bytes(), which depends only on the shape. A refusal
// is remembered too, so a shape always has the same kernels and bits. The backward pass runs its
// graph once per slice of the batch or of the heads (fused_attention.hpp). Calls that a pass cannot
// serve return false, and our own kernels take over.
#include <cudnn_frontend.h>

#include <cmath>
#include <exception>
#include <map>
#include <stdexcept>
#include <string>
#include <tuple>
#include <unordered_map>

#include "base/dynamic_library.hpp"
#include "base/error.hpp"
#include "base/log.hpp"
#include "base/units.hpp"
#include "kernels/cuda/cudnn_graphs.hpp"
#include "kernels/cuda/fused_attention.hpp"

// The frontend looks up its functions in this library.
void* cudnn_frontend::cudnn_dlhandle = nullptr;

namespace sluice::kernels::cuda {

namespace fe = cudnn_frontend;
using Graph = fe::graph::Graph;

namespace {

using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

// Distances between sequences, heads and times, in elements.
struct Strides {
  std::int64_t batch, head, time;
};

Strides packed_strides(const AttentionShape& shape) {
  const std::int64_t row = (shape.heads + 2 * shape.kv_heads) * shape.head_dim;
  return {shape.time * row, shape.head_dim, row};
}
Strides out_strides(const AttentionShape& shape) {
  const std::int64_t row = shape.heads * shape.head_dim;
  return {shape.time * row, shape.head_dim, row};
}
std::int64_t group_of(const AttentionShape& shape) {
  return shape.heads / shape.kv_heads;
}

std::shared_ptr<Graph> make_graph(DType dtype) {
  SLUICE_CHECK(dtype == DType::kBF16 || dtype == DType::kF16);
  auto graph = std::make_shared<Graph>();
  graph->set_io_data_type(dtype == DType::kBF16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  return graph;
}

// The numbers of sequences, query heads and key heads of a graph.
struct Extent {
  std::int64_t batch, heads, kv_heads;
};

// Creates the tensors of a graph.
class TensorMaker {
 public:
  TensorMaker(const AttentionShape& shape, const Extent& extent) : shape_(shape), extent_(extent) {}

  // A part of qkv or of its gradient.
  fe::graph::Tensor_attributes packed(CudnnTensor name) const {
    const bool queries = name == kQueryTensor || name == kDqueryTensor;
    return rows(name, queries ? extent_.heads : extent_.kv_heads, packed_strides(shape_));
  }
  fe::graph::Tensor_attributes out(CudnnTensor name) const {
    return rows(name, extent_.heads, out_strides(shape_));
  }
  // fp32 natural logarithms of the sums of exp(scaled scores), as in our own kernels.
  fe::graph::Tensor_attributes lse() const {
    fe::graph::Tensor_attributes tensor;
    tensor.set_uid(kLseTensor)
        .set_dim({extent_.batch, extent_.heads, shape_.time, 1})
        .set_stride({shape_.heads * shape_.time, shape_.time, 1, 1})
        .set_alignment(sizeof(float))  // a slice may begin at any row
        .set_data_type(fe::DataType_t::FLOAT);
    return tensor;
  }

 private:
  fe::graph::Tensor_attributes rows(CudnnTensor name, std::int64_t heads,
                                    const Strides& strides) const {
    fe::graph::Tensor_attributes tensor;
    tensor.set_uid(name)
        .set_dim({extent_.batch, heads, shape_.time, shape_.head_dim})
        .set_stride({strides.batch, strides.head, strides.time, 1});
    return tensor;
  }

  const AttentionShape& shape_;
  const Extent extent_;
};

// Gives a result the place and layout of `as`.
void store(const Tensor& result, const fe::graph::Tensor_attributes& as) {
  result->set_output(true)
      .set_uid(as.get_uid())
      .set_dim(as.get_dim())
      .set_stride(as.get_stride())
      .set_alignment(as.get_alignment())
      .set_data_type(as.get_data_type());
}

float scale_of(const AttentionShape& shape) {
  return 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
}

}  // namespace

std::shared_ptr<Graph> forward_graph(const AttentionShape& shape) {
  auto graph = make_graph(shape.dtype);
  const TensorMaker make(shape, {shape.batch, shape.heads, shape.kv_heads});
  const auto [out, lse] =
      graph->sdpa(graph->tensor(make.packed(kQueryTensor)), graph->tensor(make.packed(kKeyTensor)),
                  graph->tensor(make.packed(kValueTensor)),
                  fe::graph::SDPA_attributes()
                      .set_name("attention")
                      .set_generate_stats(true)
                      .set_causal_mask(true)
                      .set_attn_scale(scale_of(shape)));
  store(out, make.out(kOutTensor));
  store(lse, make.lse());
  return graph;
}

std::shared_ptr<Graph> backward_graph(const AttentionShape& shape, const AttentionSlice& slice) {
  auto graph = make_graph(shape.dtype);
  const TensorMaker make(shape, {slice.batch, slice.kv_heads * group_of(shape), slice.kv_heads});
  const auto [dq, dk, dv] = graph->sdpa_backward(
      graph->tensor(make.packed(kQueryTensor)), graph->tensor(make.packed(kKeyTensor)),
      graph->tensor(make.packed(kValueTensor)), graph->tensor(make.out(kOutTensor)),
      graph->tensor(make.out(kDoutTensor)), graph->tensor(make.lse()),
      fe::graph::SDPA_backward_attributes()
          .set_name("attention_backward")
          .set_causal_mask(true)
          .set_deterministic_algorithm(true)
          .set_attn_scale(scale_of(shape)));
  store(dq, make.packed(kDqueryTensor));
  store(dk, make.packed(kDkeyTensor));
  store(dv, make.packed(kDvalueTensor));
  return graph;
}

// Each step of the frontend runs only if all steps before it succeeded.
std::string compile_graph(Graph& graph, void* handle, std::uint64_t& workspace_bytes) {
  std::int64_t bytes = 0;
  fe::error_t error = graph.validate();
  if (error.is_good()) error = graph.build_operation_graph(static_cast<cudnnHandle_t>(handle));
  if (error.is_good()) {
    error = graph.create_execution_plans({fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK});
  }
  if (error.is_good()) {
    graph.deselect_numeric_notes({fe::NumericalNote_t::NONDETERMINISTIC});
    error = graph.check_support();
  }
  if (error.is_good()) error = graph.build_plans();
  if (error.is_good()) error = graph.get_workspace_size(bytes);
  workspace_bytes = static_cast<std::uint64_t>(bytes);
  return error.is_good() ? std::string() : error.get_message();
}

namespace {

enum class Pass { kForward, kBackward };

// The arrays of a pass; a forward pass has no gradients.
struct Arrays {
  const void *qkv, *out;
  const float* lse;
  const void* dout = nullptr;
  const void* dqkv = nullptr;
};

// The library's interface has no const pointers. All elements except lse have 16 bits.
template <class T>
void* at(const void* array, std::int64_t elems) {
  return const_cast<T*>(static_cast<const T*>(array) + elems);
}

using Pointers = std::unordered_map<std::int64_t, void*>;

// Pointers for the part that begins with this sequence and key head, and the queries that share it.
Pointers pointers_from(const AttentionShape& shape, const Arrays& arrays, std::int64_t sequence,
                       std::int64_t kv_head) {
  const Strides packed = packed_strides(shape), rows = out_strides(shape);
  const std::int64_t head = kv_head * group_of(shape);
  const std::int64_t query = sequence * packed.batch + head * packed.head;
  const std::int64_t key = sequence * packed.batch + (shape.heads + kv_head) * packed.head;
  const std::int64_t value = key + shape.kv_heads * packed.head;
  const std::int64_t row = sequence * rows.batch + head * rows.head;
  Pointers pointers{
      {kQueryTensor, at<bf16>(arrays.qkv, query)},
      {kKeyTensor, at<bf16>(arrays.qkv, key)},
      {kValueTensor, at<bf16>(arrays.qkv, value)},
      {kOutTensor, at<bf16>(arrays.out, row)},
      {kLseTensor, at<float>(arrays.lse, (sequence * shape.heads + head) * shape.time)}};
  if (arrays.dqkv != nullptr) {
    pointers[kDoutTensor] = at<bf16>(arrays.dout, row);
    pointers[kDqueryTensor] = at<bf16>(arrays.dqkv, query);
    pointers[kDkeyTensor] = at<bf16>(arrays.dqkv, key);
    pointers[kDvalueTensor] = at<bf16>(arrays.dqkv, value);
  }
  return pointers;
}

class CudnnAttention final : public FusedAttention {
 public:
  // Takes ownership of the handle.
  CudnnAttention(cudnnHandle_t handle, std::uint64_t score_bytes)
      : score_bytes_(score_bytes),
        name_("cudnn-" + fe::detail::get_backend_version_string()),
        handle_(handle) {}
  ~CudnnAttention() override {
    graphs_.clear();
    // A destructor cannot act on an error.
    static_cast<void>(fe::detail::destroy_handle(handle_));
  }

  const char* name() const override { return name_.c_str(); }

  std::uint64_t workspace_bytes(const AttentionShape& shape) const override {
    return takes(shape) ? fused_attention_bytes(shape, score_bytes_) : 0;
  }

  // The forward pass is one graph for the whole shape.
  bool forward(StreamHandle stream, const AttentionShape& shape, const void* qkv, void* out,
               float* lse, void* workspace) override {
    Graph* const graph = graph_of(Pass::kForward, shape);
    if (graph == nullptr) return false;
    run(stream, *graph, pointers_from(shape, {.qkv = qkv, .out = out, .lse = lse}, 0, 0),
        workspace);
    return true;
  }

  // The backward pass runs the slice's graph at each slice's place.
  bool backward(StreamHandle stream, const AttentionShape& shape, const void* dout, const void* qkv,
                const void* out, const float* lse, void* dqkv, void* workspace) override {
    Graph* const graph = graph_of(Pass::kBackward, shape);
    if (graph == nullptr) return false;
    const AttentionSlice slice = *backward_slice(shape, score_bytes_);
    const Arrays arrays{.qkv = qkv, .out = out, .lse = lse, .dout = dout, .dqkv = dqkv};
    for (std::int64_t sequence = 0; sequence < shape.batch; sequence += slice.batch) {
      for (std::int64_t kv_head = 0; kv_head < shape.kv_heads; kv_head += slice.kv_heads) {
        run(stream, *graph, pointers_from(shape, arrays, sequence, kv_head), workspace);
      }
    }
    return true;
  }

 private:
  using Key =
      std::tuple<Pass, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, DType>;

  static bool takes(const AttentionShape& shape) {
    return shape.dtype != DType::kF32 && shape.head_dim % 8 == 0;
  }

  // Returns the compiled graph, or null if there are no kernels.
  Graph* graph_of(Pass pass, const AttentionShape& shape) {
    const Key key(pass, shape.batch, shape.time, shape.heads, shape.kv_heads, shape.head_dim,
                  shape.dtype);
    const auto [place, is_new] = graphs_.try_emplace(key);
    if (is_new) place->second = build(pass, shape);
    return place->second.get();
  }

  // Builds and compiles the graph of a pass. Logs a refusal once per shape and returns null.
  std::shared_ptr<Graph> build(Pass pass, const AttentionShape& shape) {
    if (!takes(shape)) return nullptr;
    const auto slice = backward_slice(shape, score_bytes_);
    std::string refusal;
    try {
      if (pass == Pass::kBackward && !slice) {
        refusal = "the sequences are too long for its deterministic sums";
      } else {
        auto graph = pass == Pass::kForward ? forward_graph(shape) : backward_graph(shape, *slice);
        refusal = compile(*graph, fused_attention_bytes(shape, score_bytes_));
        if (refusal.empty()) return graph;
      }
    } catch (const std::exception& error) {  // a function or the CUDA runtime is missing
      refusal = error.what();
    }
    log(LogLevel::kWarning, std::string("attention's ") +
                                (pass == Pass::kForward ? "forward" : "backward") +
                                " pass uses our own kernels, which are slower: cuDNN: " + refusal);
    return nullptr;
  }

  // Returns the library's refusal; empty: it has kernels.
  std::string compile(Graph& graph, std::uint64_t workspace_bytes) {
    std::uint64_t bytes = 0;
    const std::string refusal = compile_graph(graph, handle_, bytes);
    if (!refusal.empty()) return refusal;
    if (bytes > workspace_bytes) {
      return "it needs a workspace of " + std::to_string(bytes) + " bytes, but gets " +
             std::to_string(workspace_bytes);
    }
    return {};
  }

  void run(StreamHandle stream, Graph& graph, Pointers pointers, void* workspace) {
    const cudnnStatus_t status = fe::detail::set_stream(handle_, stream);
    if (status != CUDNN_STATUS_SUCCESS) {
      throw DeviceError(std::string("cudnnSetStream: ") + fe::detail::get_error_string(status));
    }
    fe::error_t error = graph.execute(handle_, pointers, workspace);
    if (error.is_bad()) throw DeviceError("cuDNN's attention: " + error.get_message());
  }

  const std::uint64_t score_bytes_;
  const std::string name_;
  const cudnnHandle_t handle_;  // belongs to the context that was current at construction
  std::map<Key, std::shared_ptr<Graph>> graphs_;
};

void warn_of_own_kernels(const std::string& why) {
  log(LogLevel::kWarning,
      "attention uses our own kernels, which are slower: cuDNN cannot be used: " + why);
}

}  // namespace

bool open_cudnn() {
  if (fe::cudnn_dlhandle == nullptr) {
    fe::cudnn_dlhandle = DynamicLibrary::open({"libcudnn.so.9"}).handle();
  }
  if (fe::cudnn_dlhandle == nullptr) return false;
  try {
    // The frontend opens a CUDA runtime of its own. Without this call it would report a missing or
    // a second runtime only at the first graph.
    static_cast<void>(
        fe::detail::get_cuda_symbol(fe::detail::CudaLibrary::CUDART, "cudaGetDevice"));
    return true;
  } catch (const std::exception& error) {
    warn_of_own_kernels(error.what());
    return false;
  }
}

std::unique_ptr<FusedAttention> open_fused_attention(std::uint64_t score_bytes) {
  if (!open_cudnn()) return nullptr;
  cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
  try {
    cudnnHandle_t handle = nullptr;
    status = fe::detail::create_handle(&handle);
    if (status == CUDNN_STATUS_SUCCESS)
      return std::make_unique<CudnnAttention>(handle, score_bytes);
  } catch (const std::runtime_error& error) {  // the library lacks a function
    warn_of_own_kernels(error.what());
    return nullptr;
  }
  const std::string told = std::string("cudnnCreate: ") + fe::detail::get_error_string(status);
  const int category = CUDNN_STATUS_CATEGORY(static_cast<int>(status));
  if (category >= CUDNN_STATUS_INTERNAL_ERROR) throw DeviceError(told);
  // Errors below this category mean that cuDNN cannot work here, which is not a fault.
  warn_of_own_kernels(told);
  return nullptr;
}

}  // namespace sluice::kernels::cuda

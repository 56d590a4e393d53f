// Products as cached plans of cuBLASLt.
//
// A plan holds the descriptors and the algorithm of one key. The library stores matrices by
// columns: a row-major C is its transpose there, and C^T = op(B)^T op(A)^T, so B is its first
// operand and A its second. The preference fixes the workspace size and admits only fp32 reductions
// in a fixed order, so the heuristic's answer and the bits do not change between runs. An epilogue
// adds a bias of the output's dtype and GELU; a bias of another dtype is added by a kernel of our
// own. A key without an algorithm for its activation is remembered as impossible; callers then run
// a product and an activation.
#include "kernels/cuda/gemm_cublaslt.hpp"

#include <algorithm>
#include <bit>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "base/error.hpp"
#include "base/units.hpp"
#include "kernels/cuda/gemm_bias.hpp"

namespace sluice::kernels::cuda {
namespace {

void check(const CublasLt& lt, cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw DeviceError(std::string(call) + ": " + lt.get_status_string(status));
}

cudaDataType data_type(DType dtype) {
  return dtype == DType::kBF16 ? CUDA_R_16BF : dtype == DType::kF16 ? CUDA_R_16F : CUDA_R_32F;
}

// A descriptor of the library with its own destroy function.
template <class Handle>
class Descriptor {
 public:
  using Destroy = cublasStatus_t (*)(Handle);
  explicit Descriptor(Destroy destroy) : destroy_(destroy) {}
  Descriptor(Descriptor&& other) noexcept
      : destroy_(other.destroy_), handle_(std::exchange(other.handle_, nullptr)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() {
    // A destructor cannot act on an error.
    if (handle_ != nullptr) static_cast<void>(destroy_(handle_));
  }
  Handle get() const { return handle_; }
  Handle* out() { return &handle_; }

 private:
  Destroy destroy_;
  Handle handle_ = nullptr;
};

using Operation = Descriptor<cublasLtMatmulDesc_t>;
using Layout = Descriptor<cublasLtMatrixLayout_t>;
using Preference = Descriptor<cublasLtMatmulPreference_t>;

// Everything that a plan depends on.
struct Key {
  std::int64_t m, n, k;
  std::int64_t a_stride, b_stride, c_stride;
  bool transpose_a, transpose_b, bias;
  GemmActivation activation;
  DType dtype, output;
  std::uint32_t alignment_bytes;  // common to all pointers, at most 256
  auto operator<=>(const Key&) const = default;
};

// Everything that a product needs except its pointers. `first` is B and `second` is A (see the top
// of this file).
struct Plan {
  Operation operation;
  Layout first, second, result;
  cublasLtMatmulAlgo_t algorithm{};
  bool possible = false;
};

template <class Value>
void set(const CublasLt& lt, const Operation& operation, cublasLtMatmulDescAttributes_t attribute,
         const Value& value) {
  check(lt, lt.matmul_desc_set_attribute(operation.get(), attribute, &value, sizeof(value)),
        "cublasLtMatmulDescSetAttribute");
}

template <class Value>
void set(const CublasLt& lt, const Preference& preference,
         cublasLtMatmulPreferenceAttributes_t attribute, const Value& value) {
  check(lt, lt.matmul_preference_set_attribute(preference.get(), attribute, &value, sizeof(value)),
        "cublasLtMatmulPreferenceSetAttribute");
}

cublasLtEpilogue_t epilogue_of(const Key& key) {
  switch (key.activation) {
    case GemmActivation::kGelu:
      return key.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    case GemmActivation::kGeluBackward:
      return CUBLASLT_EPILOGUE_DGELU;
    default:
      return key.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
  }
}

// Pointers of the epilogue belong to the descriptor, so they are set before every call.
void set_pointers(const CublasLt& lt, const Operation& operation, const Key& key,
                  const GemmEpilogue& epilogue) {
  if (key.bias) set(lt, operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, epilogue.bias);
  if (key.activation != GemmActivation::kNone) {
    set(lt, operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, epilogue.x);
  }
}

Operation make_operation(const CublasLt& lt, const Key& key, const GemmEpilogue& epilogue) {
  Operation operation(lt.matmul_desc_destroy);
  // fp32 operands are multiplied as fp32; TF32 would be a compute type of its own.
  check(lt, lt.matmul_desc_create(operation.out(), CUBLAS_COMPUTE_32F, CUDA_R_32F),
        "cublasLtMatmulDescCreate");
  set(lt, operation, CUBLASLT_MATMUL_DESC_TRANSA, key.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(lt, operation, CUBLASLT_MATMUL_DESC_TRANSB, key.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(lt, operation, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(key));
  if (key.activation != GemmActivation::kNone) {
    set(lt, operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, key.n);
  }
  // The heuristic reads the pointers' alignment, which is part of the key.
  set_pointers(lt, operation, key, epilogue);
  return operation;
}

// A row-major matrix [rows, cols] is [cols, rows] by columns.
Layout make_layout(const CublasLt& lt, DType dtype, std::int64_t rows, std::int64_t cols,
                   std::int64_t stride) {
  Layout layout(lt.matrix_layout_destroy);
  check(lt,
        lt.matrix_layout_create(layout.out(), data_type(dtype), static_cast<std::uint64_t>(cols),
                                static_cast<std::uint64_t>(rows), stride),
        "cublasLtMatrixLayoutCreate");
  return layout;
}

Preference make_preference(const CublasLt& lt, const Key& key) {
  Preference preference(lt.matmul_preference_destroy);
  check(lt, lt.matmul_preference_create(preference.out()), "cublasLtMatmulPreferenceCreate");
  set(lt, preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
      std::uint64_t{kCublasLtWorkspaceBytes});
  // Only this scheme adds the parts of a split k in fp32 and in a fixed order.
  set(lt, preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  for (const auto operand :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    set(lt, preference, operand, key.alignment_bytes);
  }
  return preference;
}

Plan make_plan(const CublasLt& lt, cublasLtHandle_t handle, const Key& key,
               const GemmEpilogue& epilogue) {
  Plan plan{make_operation(lt, key, epilogue),
            key.transpose_b ? make_layout(lt, key.dtype, key.n, key.k, key.b_stride)
                            : make_layout(lt, key.dtype, key.k, key.n, key.b_stride),
            key.transpose_a ? make_layout(lt, key.dtype, key.k, key.m, key.a_stride)
                            : make_layout(lt, key.dtype, key.m, key.k, key.a_stride),
            make_layout(lt, key.output, key.m, key.n, key.c_stride)};
  const Preference preference = make_preference(lt, key);
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  const cublasStatus_t status = lt.matmul_algo_get_heuristic(
      handle, plan.operation.get(), plan.first.get(), plan.second.get(), plan.result.get(),
      plan.result.get(), preference.get(), 1, &found, &count);
  // Some shapes have no algorithm with an activation.
  const bool plain = key.activation == GemmActivation::kNone;
  if (!plain && (status != CUBLAS_STATUS_SUCCESS || count < 1)) return plan;
  check(lt, status, "cublasLtMatmulAlgoGetHeuristic");
  if (count < 1 || found.state != CUBLAS_STATUS_SUCCESS) {
    if (!plain) return plan;
    throw DeviceError("cuBLASLt has no algorithm for a product of " + std::to_string(key.m) +
                      " x " + std::to_string(key.n) + " x " + std::to_string(key.k) + " in " +
                      std::string(dtype_name(key.dtype)));
  }
  plan.algorithm = found.algo;
  plan.possible = true;
  return plan;
}

// The largest power of two, up to 256, that divides all addresses.
std::uint32_t alignment_of(const void* a, const void* b, const void* c,
                           const GemmEpilogue& epilogue) {
  std::uintptr_t bits = kTensorAlignmentBytes;
  for (const void* const pointer : {a, b, c, epilogue.bias, static_cast<const void*>(epilogue.x)}) {
    bits |= reinterpret_cast<std::uintptr_t>(pointer);
  }
  return static_cast<std::uint32_t>(bits & (~bits + 1));
}

// The library accesses x in whole 16 bytes and requires C's dtype for it.
bool takes_activation(const GemmShape& shape, std::uint32_t alignment_bytes) {
  return shape.output == shape.dtype && shape.dtype != DType::kF32 && shape.n % 8 == 0 &&
         alignment_bytes >= 16;
}

class CublasLtGemm final : public GemmBackend {
 public:
  CublasLtGemm(const CublasLt& functions, GeluEpilogue gelu)
      : lt_(functions),
        fuses_gelu_(gelu == GeluEpilogue::kFused),
        name_("cublaslt-" + std::to_string(functions.get_version())) {}
  ~CublasLtGemm() override {
    plans_.clear();
    if (handle_ != nullptr) static_cast<void>(lt_.destroy(handle_));
  }

  const char* name() const override { return name_.c_str(); }
  std::uint64_t workspace_bytes() const override { return kCublasLtWorkspaceBytes; }
  bool fuses_activations(DType dtype) const override {
    return fuses_gelu_ && dtype != DType::kF32;  // as takes_activation()
  }

  bool multiply(StreamHandle stream, const GemmShape& shape, const GemmStrides& strides,
                const void* a, const void* b, const GemmEpilogue& epilogue, void* c,
                void* workspace) override {
    // The library's epilogue requires a bias of the output's dtype.
    const void* const bias = epilogue.bias;
    const bool fused_bias = bias != nullptr && shape.output == shape.dtype;
    const Key key{.m = shape.m,
                  .n = shape.n,
                  .k = shape.k,
                  .a_stride = strides.a,
                  .b_stride = strides.b,
                  .c_stride = strides.c,
                  .transpose_a = shape.transpose_a,
                  .transpose_b = shape.transpose_b,
                  .bias = fused_bias,
                  .activation = epilogue.activation,
                  .dtype = shape.dtype,
                  .output = shape.output,
                  .alignment_bytes = alignment_of(a, b, c, epilogue)};
    if (key.activation != GemmActivation::kNone &&
        (!fuses_gelu_ || !takes_activation(shape, key.alignment_bytes))) {
      return false;
    }
    const Plan& plan = plan_of(key, epilogue);
    if (!plan.possible) return false;
    set_pointers(lt_, plan.operation, key, epilogue);
    const float one = 1.0f, none = 0.0f;
    check(lt_,
          lt_.matmul(handle_, plan.operation.get(), &one, b, plan.first.get(), a, plan.second.get(),
                     &none, c, plan.result.get(), c, plan.result.get(), &plan.algorithm, workspace,
                     kCublasLtWorkspaceBytes, stream),
          "cublasLtMatmul");
    if (bias != nullptr && !fused_bias) {
      add_bias(stream, static_cast<float*>(c), bias, shape.dtype, shape.m, shape.n, strides.c);
    }
    return true;
  }

 private:
  const Plan& plan_of(const Key& key, const GemmEpilogue& epilogue) {
    if (handle_ == nullptr) check(lt_, lt_.create(&handle_), "cublasLtCreate");
    const auto found = plans_.find(key);
    if (found != plans_.end()) return found->second;
    return plans_.emplace(key, make_plan(lt_, handle_, key, epilogue)).first->second;
  }

  CublasLt lt_;
  bool fuses_gelu_;
  std::string name_;
  cublasLtHandle_t handle_ = nullptr;
  std::map<Key, Plan> plans_;
};

}  // namespace

std::unique_ptr<GemmBackend> make_cublaslt_gemm(const CublasLt& functions, GeluEpilogue gelu) {
  return std::make_unique<CublasLtGemm>(functions, gelu);
}

}  // namespace sluice::kernels::cuda

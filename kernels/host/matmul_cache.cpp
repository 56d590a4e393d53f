// oneDNN matmul primitives, created once per shape.
//
// Creating a primitive generates code, which costs far more than one small product, so primitives
// are kept for the life of the cache. Scratchpads are the caller's (scratchpad_mode::user), which
// makes execution thread-safe.
#include "kernels/host/matmul_cache.hpp"

#include <oneapi/dnnl/dnnl.hpp>
#include <string>

#include "base/error.hpp"
#include "kernels/host/ieee_arithmetic.hpp"
#include "kernels/host/onednn.hpp"

namespace sluice::kernels::host {

struct MatmulCache::Engine {
  dnnl::engine cpu{dnnl::engine::kind::cpu, 0};
};

struct MatmulCache::Entry {
  dnnl::matmul::primitive_desc desc;
  dnnl::matmul primitive;
};

namespace {

using dnnl::memory;

memory::data_type data_type(DType dtype) {
  SLUICE_CHECK(dtype == DType::kBF16 || dtype == DType::kF32);
  return dtype == DType::kBF16 ? memory::data_type::bf16 : memory::data_type::f32;
}

memory::desc matrix(std::int64_t rows, std::int64_t cols, DType dtype, bool transposed,
                    std::int64_t stride) {
  return {{rows, cols},
          data_type(dtype),
          transposed ? memory::dims{1, stride} : memory::dims{stride, 1}};
}

dnnl::matmul::primitive_desc describe(const MatmulKey& key, const dnnl::engine& cpu) {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (key.accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  const auto a = matrix(key.m, key.k, key.dtype, key.transpose_a, key.a_stride);
  const auto b = matrix(key.k, key.n, key.dtype, key.transpose_b, key.b_stride);
  const auto c = matrix(key.m, key.n, key.c_dtype, false, key.c_stride);
  if (!key.bias) return {dnnl::matmul::desc(a, b, c), attributes, cpu};
  const auto bias = matrix(1, key.n, key.bias_dtype, false, key.n);
  return {dnnl::matmul::desc(a, b, bias, c), attributes, cpu};
}

[[noreturn]] void rethrow(const dnnl::error& error, const MatmulKey& key) {
  throw DeviceError("oneDNN matmul of " + std::to_string(key.m) + " x " + std::to_string(key.n) +
                    " x " + std::to_string(key.k) + ": " + error.what());
}

}  // namespace

MatmulCache::MatmulCache() : engine_(std::make_unique<Engine>()) {}
MatmulCache::~MatmulCache() = default;

const MatmulCache::Entry& MatmulCache::entry(const MatmulKey& key) {
  const MutexLock lock(mutex_);
  auto& slot = entries_[key];
  if (slot == nullptr) {
    // A primitive fixes its number of threads when it is created.
    const OneThread alone;
    auto desc = describe(key, engine_->cpu);
    auto primitive = dnnl::matmul(desc);
    slot = std::make_unique<Entry>(Entry{std::move(desc), std::move(primitive)});
  }
  return *slot;
}

std::size_t MatmulCache::scratchpad_bytes(const MatmulKey& key) {
  try {
    return entry(key).desc.scratchpad_desc().get_size();
  } catch (const dnnl::error& error) {
    rethrow(error, key);
  }
}

void MatmulCache::run(const MatmulKey& key, const void* a, const void* b, const void* bias, void* c,
                      void* scratchpad) {
  try {
    const Entry& made = entry(key);
    const OneThread alone;
    const IeeeArithmetic ieee;
    const auto& cpu = engine_->cpu;
    // oneDNN's handles are not const, but it only reads its sources.
    const auto bind = [&cpu](const memory::desc& desc, const void* data) {
      return memory(desc, cpu, const_cast<void*>(data));
    };
    std::unordered_map<int, memory> arguments{
        {DNNL_ARG_SRC, bind(made.desc.src_desc(), a)},
        {DNNL_ARG_WEIGHTS, bind(made.desc.weights_desc(), b)},
        {DNNL_ARG_DST, bind(made.desc.dst_desc(), c)},
        {DNNL_ARG_SCRATCHPAD, bind(made.desc.scratchpad_desc(), scratchpad)}};
    if (key.bias) arguments.emplace(DNNL_ARG_BIAS, bind(made.desc.bias_desc(), bias));
    dnnl::stream stream(cpu);
    made.primitive.execute(stream, arguments);
    stream.wait();
  } catch (const dnnl::error& error) {
    rethrow(error, key);
  }
}

}  // namespace sluice::kernels::host

// Stands in for oneDNN in libsluice.so.1. Plans ask the layers' kernels for the sizes of their
// workspaces, and so link them; nothing in the library ever runs a product. This object is in the
// shared library itself, so the linker takes these functions and leaves oneDNN's users out.
#include "base/error.hpp"
#include "kernels/host/matmul_cache.hpp"
#include "kernels/host/onednn.hpp"

namespace sluice::kernels::host {
namespace {

[[noreturn]] void refuse() {
  throw InternalError("the library has no matrix products");
}

}  // namespace

OneThread::OneThread() : before_(0) {}
OneThread::~OneThread() = default;

void sgemm(const SgemmShape&, const float*, std::int64_t, const float*, std::int64_t, float*,
           std::int64_t) {
  refuse();
}

// A plan that depends on this is refused before (plan_request.cpp).
bool onednn_has_fast_bf16() {
  return false;
}
bool onednn_has_bf16() {
  return false;
}
std::string onednn_version_and_isa() {
  return "none";
}

struct MatmulCache::Entry {};
struct MatmulCache::Engine {};
MatmulCache::MatmulCache() {
  refuse();
}
MatmulCache::~MatmulCache() = default;
std::size_t MatmulCache::scratchpad_bytes(const MatmulKey&) {
  refuse();
}
void MatmulCache::run(const MatmulKey&, const void*, const void*, const void*, void*, void*) {
  refuse();
}

}  // namespace sluice::kernels::host

// The one function of libsluice_gloo.so. Its name has the version, because program and module share
// C++ classes: a module of another version is refused.
#pragma once

#include <memory>

namespace sluice::collectives {
class Communicator;
struct GlooOptions;
}  // namespace sluice::collectives

// Sets `group` to make_gloo_communicator(options) of the module, and throws what that throws.
extern "C" void SLUICE_GLOO_ENTRY(const sluice::collectives::GlooOptions& options,
                                  std::unique_ptr<sluice::collectives::Communicator>& group);

// The door of libsluice_gloo.so, a shared object with this room's communicator and its own copy of
// the rooms below. The program opens it when several ranks ask for a group (gloo_loader.cpp), so it
// starts on a machine without libgloo.
#include "collectives/gloo/gloo_module.hpp"

#include "collectives/gloo/gloo_communicator.hpp"

extern "C" __attribute__((visibility("default"))) void SLUICE_GLOO_ENTRY(
    const sluice::collectives::GlooOptions& options,
    std::unique_ptr<sluice::collectives::Communicator>& group) {
  group = sluice::collectives::make_gloo_communicator(options);
}

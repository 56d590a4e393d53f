// The program's side of libsluice_gloo.so: opens the module when a group needs it. The module lies
// in ../lib as seen from the program (its RPATH), in a build, an installation and a wheel.
#include "base/dynamic_library.hpp"
#include "base/error.hpp"
#include "collectives/gloo/gloo_communicator.hpp"
#include "collectives/gloo/gloo_module.hpp"

namespace sluice::collectives {
namespace {

constexpr const char* kModule = "libsluice_gloo.so";

#define SLUICE_TEXT_OF(name) #name
#define SLUICE_NAME_OF(name) SLUICE_TEXT_OF(name)

using MakeGroup = decltype(&SLUICE_GLOO_ENTRY);

MakeGroup open_module() {
  DynamicLibrary library = DynamicLibrary::open({kModule});
  if (!library.is_open()) {
    throw DeviceError("several ranks need Gloo, whose module cannot be opened (" + library.error() +
                      "); install libgloo0, or libgloo-dev before a build; or train on one rank");
  }
  MakeGroup make_group = nullptr;
  library.find(SLUICE_NAME_OF(SLUICE_GLOO_ENTRY), make_group);
  if (make_group == nullptr) {
    throw DeviceError(std::string(kModule) +
                      " belongs to another version of Sluice; install both again");
  }
  return make_group;
}

MakeGroup gloo_module() {
  static const MakeGroup make_group = open_module();
  return make_group;
}

}  // namespace

std::string gloo_missing() {
  try {
    gloo_module();
    return {};
  } catch (const DeviceError& error) {
    return error.what();
  }
}

std::unique_ptr<Communicator> make_gloo_communicator(const GlooOptions& options) {
  SLUICE_CHECK(options.rank >= 0 && options.rank < options.size);
  if (options.size == 1) return make_single_communicator();
  std::unique_ptr<Communicator> group;
  gloo_module()(options, group);
  return group;
}

}  // namespace sluice::collectives

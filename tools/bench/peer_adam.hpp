// The text of peer_adam.py: the program needs no file next to it, and both use one protocol
// version.
#pragma once

#include <string_view>

namespace sluice::bench {

extern const std::string_view kPeerAdam;

}  // namespace sluice::bench

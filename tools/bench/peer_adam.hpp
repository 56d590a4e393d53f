// The text of peer_adam.py, so that the program needs no file beside it and both speak one
// protocol.
#pragma once

#include <string_view>

namespace sluice::bench {

extern const std::string_view kPeerAdam;

}  // namespace sluice::bench

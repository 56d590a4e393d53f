// The deadline of waits that are expected to end.
#pragma once

#include "base/deadline.hpp"

namespace sluice::device {

inline Deadline soon() {
  return Deadline::after_seconds(60);
}

}  // namespace sluice::device

// Software pipelining of a stream of pieces in list order.
#pragma once

#include <algorithm>
#include <cstddef>

namespace sluice::schedule {

// Emits in(i), mid(i), out(i) for i in [0, count) so that in() runs `lookahead` pieces ahead: at
// most lookahead + 1 pieces are alive at once, and piece i+1 is read while i is updated and i-1
// written.
template <typename In, typename Mid, typename Out>
void pipeline_pieces(std::size_t count, std::size_t lookahead, In in, Mid mid, Out out) {
  for (std::size_t i = 0; i < std::min(lookahead, count); ++i) in(i);
  for (std::size_t i = 0; i < count; ++i) {
    if (lookahead == 0) in(i);
    mid(i);
    if (lookahead > 0 && i + lookahead < count) in(i + lookahead);
    out(i);
  }
}

}  // namespace sluice::schedule

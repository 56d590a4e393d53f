// How a rank that a launcher has placed finds the others.
#include "collectives/gloo/gloo_communicator.hpp"

namespace sluice::collectives {

GlooOptions gloo_options_at(const RendezvousPlace& place) {
  GlooOptions options;
  options.rank = place.rank;
  options.size = place.size;
  if (place.local_size < place.size) options.address = local_address_towards(place.address);
  options.exchange = [place](const std::string& message, Deadline deadline) {
    return exchange_messages(place, message, deadline);
  };
  return options;
}

}  // namespace sluice::collectives

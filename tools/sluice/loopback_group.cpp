#include "tools/sluice/loopback_group.hpp"

#include <cstddef>
#include <exception>
#include <thread>

#include "base/error.hpp"
#include "collectives/gloo/gloo_communicator.hpp"
#include "collectives/socket.hpp"
#include "tools/sluice/rank_processes.hpp"

namespace sluice::cli {

std::vector<std::unique_ptr<collectives::Communicator>> make_loopback_group(int ranks) {
  const auto count = static_cast<std::size_t>(ranks);
  const collectives::Socket listener = collectives::listen_at("127.0.0.1", 0);
  collectives::RendezvousPlace place;
  place.size = place.local_size = ranks;
  place.port = collectives::port_of(listener);
  place.port_is_bound = true;
  place.job = make_token();
  std::vector<std::unique_ptr<collectives::Communicator>> group(count);
  std::vector<std::exception_ptr> errors(count);
  {
    std::vector<std::jthread> threads;
    for (std::size_t rank = 0; rank < count; ++rank) {
      threads.emplace_back([&, rank, own = place]() mutable {
        own.rank = own.local_rank = static_cast<int>(rank);
        own.listener = rank == 0 ? listener.descriptor() : -1;
        collectives::GlooOptions options = collectives::gloo_options_at(own);
        options.start_seconds = options.call_seconds = 30;
        try {
          group[rank] = collectives::make_gloo_communicator(options);
        } catch (const std::exception&) {
          errors[rank] = std::current_exception();
        }
      });
    }
  }
  try {
    for (const std::exception_ptr& error : errors) {
      if (error) std::rethrow_exception(error);
    }
  } catch (const DeviceError&) {
    return {};
  }
  return group;
}

}  // namespace sluice::cli

#include "kernels/host/node_binding.hpp"

#include <cerrno>
#include <cstring>
#include <string>

#include "base/log.hpp"

namespace sluice::kernels::host {

NodeBinding::NodeBinding(const NumaMachine* machine, std::size_t node, std::atomic<bool>& warned) {
  if (machine == nullptr) return;
  before_.emplace();
  const int refused = before_->known() ? machine->bind_this_thread(node) : E2BIG;
  if (refused == 0) return;
  before_.reset();
  if (warned.exchange(true)) return;
  log(LogLevel::kWarning, "threads cannot be bound to NUMA node " +
                              std::to_string(machine->nodes()[node].os_index) + " (" +
                              std::strerror(refused) + "): the system chooses where they run");
}

}  // namespace sluice::kernels::host

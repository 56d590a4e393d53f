#include "base/numa.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>

#include "base/hwloc_handle.hpp"

namespace sluice {
namespace {

class HwlocNumaMachine final : public NumaMachine {
 public:
  explicit HwlocNumaMachine(const std::string& synthetic)
      : topology_(load_topology(synthetic)), synthetic_(!synthetic.empty()) {
    const BitmapHandle usable = read_usable_cpus(topology_.get());
    const BitmapHandle taken = make_bitmap();
    hwloc_obj_t object = nullptr;
    while ((object = hwloc_get_next_obj_by_type(topology_.get(), HWLOC_OBJ_NUMANODE, object)) !=
           nullptr) {
      nodes_.push_back(describe(object, usable.get(), taken.get()));
    }
    // hwloc 2 reports one node if the system shows none.
    SLUICE_CHECK(!nodes_.empty());
  }

  std::span<const NumaNode> nodes() const override { return nodes_; }

  int bind_memory(void* data, std::uint64_t bytes, std::size_t node) const noexcept override {
    const BitmapHandle set(hwloc_bitmap_alloc());
    if (!set) return ENOMEM;
    hwloc_bitmap_only(set.get(), static_cast<unsigned>(nodes_[node].os_index));
    // Without HWLOC_MEMBIND_STRICT hwloc asks Linux for MPOL_PREFERRED (a test checks this).
    return hwloc_set_area_membind(topology_.get(), data, bytes, set.get(), HWLOC_MEMBIND_BIND,
                                  HWLOC_MEMBIND_BYNODESET) == 0
               ? 0
               : errno;
  }

  int bind_this_thread(std::size_t node) const noexcept override {
    if (nodes_[node].cpus.empty()) return EINVAL;
    const BitmapHandle set(hwloc_bitmap_alloc());
    if (!set) return ENOMEM;
    for (const int cpu : nodes_[node].cpus) hwloc_bitmap_set(set.get(), static_cast<unsigned>(cpu));
    return hwloc_set_cpubind(topology_.get(), set.get(), HWLOC_CPUBIND_THREAD) == 0 ? 0 : errno;
  }

  int find_pages(std::span<const void* const> addresses,
                 std::span<int> found) const noexcept override {
    if (synthetic_) {
      std::fill(found.begin(), found.end(), -1);
      return 0;
    }
    // Without target nodes the call moves nothing. Each status is a page's node, or a negative
    // errno if it has none (Linux, mm/migrate.c: do_pages_stat).
    if (syscall(SYS_move_pages, 0, addresses.size(), addresses.data(), nullptr, found.data(), 0) !=
        0) {
      return errno;
    }
    for (int& place : found) place = position_of(place);
    return 0;
  }

 private:
  int position_of(int os_index) const noexcept {
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (nodes_[i].os_index == os_index) return static_cast<int>(i);
    }
    return -1;
  }

  // taken: the processing units of the earlier nodes; this node's are added to it.
  static NumaNode describe(hwloc_obj_t object, hwloc_const_bitmap_t usable, hwloc_bitmap_t taken) {
    NumaNode node;
    node.os_index = static_cast<int>(object->os_index);
    node.memory_bytes = object->attr->numanode.local_memory;
    const BitmapHandle own = make_bitmap();
    // Uses the complete set: a node is not memory-only just because a control group forbids its
    // socket's processing units.
    hwloc_bitmap_andnot(own.get(), object->complete_cpuset, taken);
    hwloc_bitmap_or(taken, taken, object->complete_cpuset);
    node.memory_only = hwloc_bitmap_iszero(own.get()) != 0;
    hwloc_bitmap_and(own.get(), own.get(), usable);
    for (int cpu = hwloc_bitmap_first(own.get()); cpu >= 0;
         cpu = hwloc_bitmap_next(own.get(), cpu)) {
      node.cpus.push_back(cpu);
    }
    return node;
  }

  TopologyHandle topology_;
  const bool synthetic_;
  std::vector<NumaNode> nodes_;
};

}  // namespace

bool has_several_numa_nodes() {
  // A list of ranges: "0", "0-1", "0,2" (Linux, Documentation/ABI/stable/sysfs-devices-node).
  std::ifstream file("/sys/devices/system/node/online");
  std::string online;
  return std::getline(file, online) && online.find_first_of(",-") != std::string::npos;
}

std::unique_ptr<NumaMachine> read_numa_machine() {
  return std::make_unique<HwlocNumaMachine>("");
}

std::unique_ptr<NumaMachine> make_synthetic_numa_machine(const std::string& description) {
  if (description.empty()) throw InputError("a synthetic topology needs a description");
  return std::make_unique<HwlocNumaMachine>(description);
}

}  // namespace sluice

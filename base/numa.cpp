#include "base/numa.hpp"

#include <cerrno>

#include "base/hwloc_handle.hpp"

namespace sluice {
namespace {

class HwlocNumaMachine final : public NumaMachine {
 public:
  explicit HwlocNumaMachine(const std::string& synthetic) : topology_(load_topology(synthetic)) {
    const BitmapHandle usable = read_usable_cpus(topology_.get());
    const BitmapHandle taken = make_bitmap();
    hwloc_obj_t object = nullptr;
    while ((object = hwloc_get_next_obj_by_type(topology_.get(), HWLOC_OBJ_NUMANODE, object)) !=
           nullptr) {
      nodes_.push_back(describe(object, usable.get(), taken.get()));
    }
    // hwloc 2 makes up a node where the system shows none.
    SLUICE_CHECK(!nodes_.empty());
  }

  std::span<const NumaNode> nodes() const override { return nodes_; }

  int bind_memory(void* data, std::uint64_t bytes, std::size_t node) const noexcept override {
    const BitmapHandle set(hwloc_bitmap_alloc());
    if (!set) return ENOMEM;
    hwloc_bitmap_only(set.get(), static_cast<unsigned>(nodes_[node].os_index));
    // Without HWLOC_MEMBIND_STRICT hwloc asks Linux for MPOL_PREFERRED (a test looks).
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

 private:
  // taken: the processing units of the nodes before; the node's are added.
  static NumaNode describe(hwloc_obj_t object, hwloc_const_bitmap_t usable, hwloc_bitmap_t taken) {
    NumaNode node;
    node.os_index = static_cast<int>(object->os_index);
    node.memory_bytes = object->attr->numanode.local_memory;
    const BitmapHandle own = make_bitmap();
    // The complete set: a control group that forbids a socket's processing units does not make
    // memory of another kind of its node.
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
  std::vector<NumaNode> nodes_;
};

}  // namespace

std::unique_ptr<NumaMachine> read_numa_machine() {
  return std::make_unique<HwlocNumaMachine>("");
}

std::unique_ptr<NumaMachine> make_synthetic_numa_machine(const std::string& description) {
  if (description.empty()) throw InputError("a synthetic topology needs a description");
  return std::make_unique<HwlocNumaMachine>(description);
}

}  // namespace sluice

#include "tests/support/cuda_emulation/context.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <new>

#include "base/error.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#elif defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

#if SLUICE_EMULATION_ASSEMBLY
// void sluice_emulation_switch(void** save, void* load): pushes the registers that the System V ABI
// has a callee preserve, leaves the stack pointer in *save and goes on with the stack `load`.
asm(R"(
.text
.globl sluice_emulation_switch
.hidden sluice_emulation_switch
.type sluice_emulation_switch,@function
sluice_emulation_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size sluice_emulation_switch,.-sluice_emulation_switch
)");
extern "C" void sluice_emulation_switch(void** save, void* load);
#endif

namespace sluice::emulation {
namespace {

// Sanitizers make frames several times larger. Untouched pages cost nothing.
constexpr std::size_t kStackBytes = 256 * 1024;
constexpr int kPreservedRegisters = 6;

std::size_t page_bytes() {
  static const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

// The context that suspended itself last, and the one that goes on.
thread_local Context* t_from = nullptr;
thread_local Context* t_to = nullptr;

}  // namespace

Context::Context() {
#if defined(__SANITIZE_THREAD__)
  race_fiber_ = __tsan_get_current_fiber();
#endif
}

Context::Context(void (*entry)(void*), void* argument) : entry_(entry), argument_(argument) {
  const std::size_t guard_bytes = page_bytes();
  void* const mapped = ::mmap(nullptr, guard_bytes + kStackBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  mapping_ = static_cast<std::byte*>(mapped);
  SLUICE_CHECK(::mprotect(mapping_, guard_bytes, PROT_NONE) == 0);
  stack_bottom_ = mapping_ + guard_bytes;
  stack_bytes_ = kStackBytes;
#if SLUICE_EMULATION_ASSEMBLY
  // As if a call had pushed its return address: 8 bytes past a multiple of 16 at begin()'s entry.
  void** top = reinterpret_cast<void**>(mapping_ + guard_bytes + kStackBytes) - 1;
  *top = nullptr;
  *--top = reinterpret_cast<void*>(&Context::begin);
  for (int i = 0; i < kPreservedRegisters; ++i) *--top = nullptr;
  stack_pointer_ = top;
#else
  ::getcontext(&registers_);
  registers_.uc_stack.ss_sp = mapping_ + guard_bytes;
  registers_.uc_stack.ss_size = kStackBytes;
  ::makecontext(&registers_, &Context::begin, 0);
#endif
#if defined(__SANITIZE_THREAD__)
  race_fiber_ = __tsan_create_fiber(0);
#endif
}

Context::~Context() {
  if (mapping_ == nullptr) return;
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(stack_bottom_, stack_bytes_);
#elif defined(__SANITIZE_THREAD__)
  __tsan_destroy_fiber(race_fiber_);
#endif
  ::munmap(mapping_, page_bytes() + kStackBytes);
}

// On the stack of `here`, which has just been switched to.
void Context::arrive([[maybe_unused]] Context& here) {
#if defined(__SANITIZE_ADDRESS__)
  // The stack of the OS thread is known to us only from here.
  __sanitizer_finish_switch_fiber(here.fake_stack_, &t_from->stack_bottom_, &t_from->stack_bytes_);
#endif
}

void Context::begin() {
  Context& self = *t_to;
  arrive(self);
  self.entry_(self.argument_);
  std::abort();  // entry has nowhere to return to
}

void Context::switch_between(Context& from, Context& to) {
  t_from = &from;
  t_to = &to;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&from.fake_stack_, to.stack_bottom_, to.stack_bytes_);
#elif defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(to.race_fiber_, 0);
#endif
#if SLUICE_EMULATION_ASSEMBLY
  sluice_emulation_switch(&from.stack_pointer_, to.stack_pointer_);
#else
  ::swapcontext(&from.registers_, &to.registers_);
#endif
  arrive(from);
}

}  // namespace sluice::emulation

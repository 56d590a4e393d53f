// A computation that can be put aside and taken up again: a stack of its own and the registers that
// a call preserves. CUDA threads run on these.
//
// x86-64 switches by a dozen instructions; other processors by swapcontext(3), which makes two
// system calls. Sanitizers are told of each switch. A context belongs to one OS thread.
#pragma once

#include <cstddef>

#if defined(__x86_64__) && !defined(SLUICE_EMULATION_UCONTEXT)
#define SLUICE_EMULATION_ASSEMBLY 1
#else
#define SLUICE_EMULATION_ASSEMBLY 0
#include <ucontext.h>
#endif

namespace sluice::emulation {

class Context {
 public:
  // The calling thread itself: filled when it switches away.
  Context();
  // Begins entry(argument) when first switched to. entry never returns and throws nothing.
  Context(void (*entry)(void*), void* argument);
  // A suspended computation is dropped where it stands; no destructors run on its stack.
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  // Suspends `from`, which is the one that runs, and goes on with `to`. Returns when another
  // context switches back to `from`.
  static void switch_between(Context& from, Context& to);

 private:
  [[noreturn]] static void begin();
  static void arrive(Context& here);

  void (*entry_)(void*) = nullptr;
  void* argument_ = nullptr;
  std::byte* mapping_ = nullptr;  // guard page, then the stack; null for a thread's own
  void* stack_pointer_ = nullptr;
  // State of AddressSanitizer and ThreadSanitizer.
  void* fake_stack_ = nullptr;
  const void* stack_bottom_ = nullptr;
  std::size_t stack_bytes_ = 0;
  void* race_fiber_ = nullptr;
#if !SLUICE_EMULATION_ASSEMBLY
  ucontext_t registers_{};
#endif
};

}  // namespace sluice::emulation

// Fibers on x86-64 by a switch in assembly, elsewhere by ucontext (ten times as slow, as it asks the kernel for
// signals).
#include "fibers.h"

#include <cstring>

#if !defined(EMULATOR_UCONTEXT_SWITCH)
// Saves what a callee must keep on the stack that is left, and takes it from the one that is entered.
extern "C" void emulator_switch(void** leave, void* enter);
asm(R"(
    .text
    .hidden emulator_switch
    .globl emulator_switch
    .type emulator_switch, @function
emulator_switch:
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
    .size emulator_switch, . - emulator_switch
)");
#endif

namespace emulator {
namespace {

#if defined(__SANITIZE_ADDRESS__)
Fiber* main_fiber = nullptr;
#endif

}  // namespace

void adopt(Fiber& fiber) {
#if defined(__SANITIZE_ADDRESS__)
    main_fiber = &fiber;
#endif
#if defined(__SANITIZE_THREAD__)
    fiber.tsan = __tsan_get_current_fiber();
#else
    (void)fiber;
#endif
}

void prepare(Fiber& fiber, void (*entry)()) {
#if defined(__SANITIZE_ADDRESS__)
    ASAN_UNPOISON_MEMORY_REGION(fiber.stack, fiber.stack_bytes);  // of an earlier fiber that never returned
#endif
#if defined(__SANITIZE_THREAD__)
    if (fiber.tsan == nullptr) fiber.tsan = __tsan_create_fiber(0);
#endif
#if defined(EMULATOR_UCONTEXT_SWITCH)
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack;
    fiber.context.uc_stack.ss_size = size_t(fiber.stack_bytes);
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, entry, 0);
#else
    void** top = reinterpret_cast<void**>(fiber.stack + fiber.stack_bytes);
    *--top = nullptr;  // what a call would have pushed: the entry finds its stack aligned
    *--top = reinterpret_cast<void*>(entry);
    for (int saved = 0; saved < 6; ++saved) *--top = nullptr;
    fiber.stack_pointer = top;
#endif
}

void switch_fiber(Fiber& from, Fiber& to) {
#if defined(__SANITIZE_ADDRESS__)
    void* fake_stack = nullptr;
    __sanitizer_start_switch_fiber(&fake_stack, to.stack, size_t(to.stack_bytes));
#endif
#if defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(to.tsan, __tsan_switch_to_fiber_no_sync);
#endif
#if defined(EMULATOR_UCONTEXT_SWITCH)
    swapcontext(&from.context, &to.context);
#else
    emulator_switch(&from.stack_pointer, to.stack_pointer);
#endif
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
}

void entered() {
#if defined(__SANITIZE_ADDRESS__)
    const void* bottom = nullptr;
    size_t bytes = 0;
    __sanitizer_finish_switch_fiber(nullptr, &bottom, &bytes);
    if (main_fiber->stack == nullptr) {
        main_fiber->stack = static_cast<unsigned char*>(const_cast<void*>(bottom));
        main_fiber->stack_bytes = int64_t(bytes);
    }
#endif
}

void forget(Fiber& fiber) {
#if defined(__SANITIZE_THREAD__)
    if (fiber.tsan != nullptr) __tsan_destroy_fiber(fiber.tsan);
    fiber.tsan = nullptr;
#else
    (void)fiber;
#endif
}

}  // namespace emulator

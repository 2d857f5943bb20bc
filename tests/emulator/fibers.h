// A fiber: a function with a stack of its own, entered and left by a switch of a few instructions. What the sanitizers
// have to be told of it is told here.
#pragma once

#include <cstdint>

#if !defined(__x86_64__) || defined(EMULATOR_UCONTEXT)
#define EMULATOR_UCONTEXT_SWITCH
#include <ucontext.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace emulator {

struct Fiber {
#if defined(EMULATOR_UCONTEXT_SWITCH)
    ucontext_t context;
#else
    void* stack_pointer = nullptr;
#endif
    unsigned char* stack = nullptr;  // its lowest byte
    int64_t stack_bytes = 0;
#if defined(__SANITIZE_THREAD__)
    void* tsan = nullptr;
#endif
};

// The fiber of the caller, which needs no stack.
void adopt(Fiber& fiber);
// Ready to run `entry`, which must never return, on a stack that is set already.
void prepare(Fiber& fiber, void (*entry)());
void switch_fiber(Fiber& from, Fiber& to);
// To be called first by an entry.
void entered();
void forget(Fiber& fiber);

}  // namespace emulator

// What a launch on the CPU is made of: its threads, their stacks and shared memory, and what they wait in.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "emulated.h"
#include "fibers.h"

namespace emulator {

constexpr int lanes_in_warp = 32;
#if defined(__SANITIZE_ADDRESS__)
constexpr int64_t stack_bytes = 256 << 10;
#else
constexpr int64_t stack_bytes = 128 << 10;
#endif
constexpr int64_t guard_bytes = 4096;

struct Thread {
    Fiber fiber;
    uint3 index{};
    bool has_left = false;
    Meeting waits_in = Meeting::none;
    const char* waits_in_name = "";
    Place place{};
    unsigned mask = 0;
    bool predicate = false;
    uint64_t value = 0;
    int source_lane = -1;
    uint64_t result = 0;
};

// Stacks with a page below each that nobody may touch.
class Stacks {
  public:
    explicit Stacks(int64_t count) : count_(count) { map(); }
    ~Stacks() { unmap(); }
    Stacks(const Stacks&) = delete;
    Stacks& operator=(const Stacks&) = delete;
    bool are_there() const { return all_ != nullptr; }
    unsigned char* stack(int64_t at) const { return all_ + at * (stack_bytes + guard_bytes) + guard_bytes; }
    // Memory that no fiber of an earlier block has had: who looks for races would take that one's locals for shared.
    void renew() {
        unmap();
        map();
    }

  private:
    void map() {
        void* mapped =
            mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        all_ = mapped == MAP_FAILED ? nullptr : static_cast<unsigned char*>(mapped);
#if !defined(__SANITIZE_THREAD__)
        for (int64_t at = 0; all_ && at < count_; ++at)
            mprotect(stack(at) - guard_bytes, size_t(guard_bytes), PROT_NONE);
#endif
    }
    void unmap() {
        if (all_) munmap(all_, bytes());
    }
    size_t bytes() const { return size_t(count_ * (stack_bytes + guard_bytes)); }

    int64_t count_;
    unsigned char* all_ = nullptr;
};

struct Launch {
    explicit Launch(int64_t count) : threads(size_t(count)), stacks(count) {}

    void (*call)(void**) = nullptr;
    void** arguments = nullptr;
    std::vector<Thread> threads;
    Stacks stacks;
    int64_t most_blocks = 0;
    int64_t left = 0, at_barrier = 0;
    Fiber scheduler;
    Thread* running = nullptr;
    std::unique_ptr<unsigned char[]> dynamic_bytes;
    int64_t dynamic_count = 0;
    void* dynamic_place = nullptr;
    std::string refusal;
    // Two of each, taken in turn: with one, a thread that is a barrier ahead would order what no barrier orders.
    char barrier_tags[2] = {};
    int64_t barriers = 0;
    std::vector<char> warp_tags;
    std::vector<int64_t> warp_syncs;
};

// The one at work; a single one is at a time.
extern Launch* launch;

inline int64_t number_of(const Thread& thread) { return &thread - launch->threads.data(); }
inline void give_way(Thread& thread) { switch_fiber(thread.fiber, launch->scheduler); }

// What a sanitizer of races is told: all before the one comes before all after the other, by the same tag.
inline void order_before(void* tag) {
#if defined(__SANITIZE_THREAD__)
    __tsan_release(tag);
#else
    (void)tag;
#endif
}
inline void order_after(void* tag) {
#if defined(__SANITIZE_THREAD__)
    __tsan_acquire(tag);
#else
    (void)tag;
#endif
}

// As printf has it.
std::string written(const char* format, ...) __attribute__((format(printf, 1, 2)));
std::string name_of(const Thread& thread);
std::string name_of(Place place);

// Before a block: all shared memory is a NaN in every format.
void poison_shared();
// Nobody can run any more, and not all have left: who waits where, and for whom.
std::string stuck();

}  // namespace emulator

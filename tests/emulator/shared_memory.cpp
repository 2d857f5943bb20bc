// Shared memory of a block: a kernel's static arrays, which threads come by one after another, and the dynamic one.
#include <cstring>

#include "launch.h"

namespace emulator {
namespace {

// A static of a kernel's function that threads have come by, and where it is in this block.
struct Shared {
    void* own;
    int64_t bytes;
    void* place;
};

std::vector<Shared>& static_shared() {
    static std::vector<Shared> all;
    return all;
}

#if defined(__SANITIZE_THREAD__)
// Shared memory that no other block has had: of what is used again, a race would be reported where there is none.
class FreshBytes {
  public:
    void* take(int64_t bytes) {
        if (all_ == nullptr) refill();
        used_ += (bytes + 15) / 16 * 16;
        return all_ + used_ - (bytes + 15) / 16 * 16;
    }
    // Before a block, whose arrays must all be of the same mapping.
    void refill_if_low() {
        if (used_ > mapped_bytes / 2) refill();
    }

  private:
    void refill() {
        if (all_ != nullptr) munmap(all_, mapped_bytes);
        all_ = static_cast<unsigned char*>(
            mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
        used_ = 0;
    }
    static constexpr int64_t mapped_bytes = 64 << 20;
    unsigned char* all_ = nullptr;
    int64_t used_ = 0;
};
FreshBytes fresh_bytes;
#endif

void* place_of(void* own, int64_t bytes) {
#if defined(__SANITIZE_THREAD__)
    own = fresh_bytes.take(bytes);
    // The sanitizer takes a call of memset for the running thread's.
    volatile unsigned char* place = static_cast<unsigned char*>(own);
    for (int64_t at = 0; at < bytes; ++at) place[at] = 0xff;
#else
    std::memset(own, 0xff, size_t(bytes));
#endif
    return own;
}

}  // namespace

void poison_shared() {
#if defined(__SANITIZE_THREAD__)
    fresh_bytes.refill_if_low();
#endif
    for (Shared& one : static_shared()) one.place = place_of(one.own, one.bytes);
    launch->dynamic_place = place_of(launch->dynamic_bytes.get(), launch->dynamic_count);
}

void* shared_place(void* own, int64_t bytes) {
    for (const Shared& one : static_shared()) {
        if (one.own == own) return one.place;
    }
    static_shared().push_back({own, bytes, place_of(own, bytes)});
    return static_shared().back().place;
}

void* dynamic_shared() { return launch->dynamic_place; }

}  // namespace emulator

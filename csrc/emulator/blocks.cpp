// A launch on the CPU: its blocks one after another, the threads of a block as fibers in a chosen order.
//
// A thread runs until it waits at a barrier or in an operation of its warp. What a chip leaves undefined ends the
// launch with a line that names kernel, thread and place: barriers that not all threads reach, or reach in different
// places; a lane that is not in its own mask, waits for one that has left, or reads from one outside the mask; an early
// exit; a misaligned vector. Shared memory holds 0xff, a NaN in every format, before each block.
#include <sys/mman.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "emulated.h"
#include "fibers.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace emulator {
namespace {

// `warps_ahead` lets each warp run as far as it can before the next one starts, which shows a missing barrier at a
// loop's end.
enum class Order : int { forward, reverse, random, warps_ahead, warps_ahead_reverse };

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

Launch* launch = nullptr;

void order_before(void* tag) {
#if defined(__SANITIZE_THREAD__)
    __tsan_release(tag);
#else
    (void)tag;
#endif
}
void order_after(void* tag) {
#if defined(__SANITIZE_THREAD__)
    __tsan_acquire(tag);
#else
    (void)tag;
#endif
}

std::string written(const char* format, ...) __attribute__((format(printf, 1, 2)));
std::string written(const char* format, ...) {
    char text[512];
    va_list values;
    va_start(values, format);
    std::vsnprintf(text, sizeof(text), format, values);
    va_end(values);
    return text;
}

std::string name_of(const Thread& thread) {
    return written("thread (%u,%u,%u) of block (%u,%u,%u)", thread.index.x, thread.index.y, thread.index.z, blockIdx.x,
                   blockIdx.y, blockIdx.z);
}
std::string name_of(Place place) {
    const char* slash = std::strrchr(place.file, '/');
    return written("%s:%d", slash ? slash + 1 : place.file, place.line);
}

// From a thread: back to the scheduler, which ends the launch. The thread's stack is left as it is.
[[noreturn]] void end_launch(std::string why) {
    launch->refusal = std::move(why);
    switch_fiber(launch->running->fiber, launch->scheduler);
    __builtin_unreachable();
}

void give_way(Thread& thread) { switch_fiber(thread.fiber, launch->scheduler); }

int64_t number_of(const Thread& thread) { return &thread - launch->threads.data(); }

void run_thread() {
    entered();
    launch->call(launch->arguments);
    Thread& thread = *launch->running;
    thread.has_left = true;
    ++launch->left;
    order_before(&launch->scheduler);
    give_way(thread);
    __builtin_unreachable();
}

void poison_shared() {
#if defined(__SANITIZE_THREAD__)
    fresh_bytes.refill_if_low();
#endif
    for (Shared& one : static_shared()) one.place = place_of(one.own, one.bytes);
    launch->dynamic_place = place_of(launch->dynamic_bytes.get(), launch->dynamic_count);
}

// Nobody can run any more, and not all have left.
std::string stuck() {
    const auto& threads = launch->threads;
    const auto is = [&](auto what) { return std::find_if(threads.begin(), threads.end(), what); };
    const auto in_warp = is([](const Thread& t) { return !t.has_left && t.waits_in >= Meeting::sync_warp; });
    if (in_warp != threads.end()) {
        const int64_t first = number_of(*in_warp) / lanes_in_warp * lanes_in_warp;
        std::string why = written("%s waits in %s with mask 0x%08x at %s", name_of(*in_warp).c_str(),
                                  in_warp->waits_in_name, in_warp->mask, name_of(in_warp->place).c_str());
        for (int lane = 0; lane < lanes_in_warp; ++lane) {
            const Thread& other = threads[size_t(first + lane)];
            if (!(in_warp->mask >> lane & 1) || (other.waits_in == in_warp->waits_in && other.mask == in_warp->mask))
                continue;
            if (other.has_left) return why + written(", lane %d of it has left the kernel", lane);
            return why + written(", lane %d of it waits in %s with mask 0x%08x at %s", lane, other.waits_in_name,
                                 other.mask, name_of(other.place).c_str());
        }
        return why;
    }
    const auto waiting = is([](const Thread& t) { return !t.has_left; });
    const auto gone = is([](const Thread& t) { return t.has_left; });
    return written("%s waits in %s at %s, which ", name_of(*waiting).c_str(), waiting->waits_in_name,
                   name_of(waiting->place).c_str()) +
           (gone == threads.end() ? "not all threads reach"
                                  : name_of(*gone) + " never reaches: it has left the kernel");
}

bool can_run(const Thread& thread) { return !thread.has_left && thread.waits_in == Meeting::none; }

void run(Thread& thread) {
    launch->running = &thread;
    threadIdx = thread.index;
    switch_fiber(launch->scheduler, thread.fiber);
}

// One turn of each thread of [first, last) that can run, in the order's way; whether any could.
bool sweep(std::vector<int>& order) {
    bool any = false;
    for (const int number : order) {
        Thread& thread = launch->threads[size_t(number)];
        if (!can_run(thread)) continue;
        any = true;
        run(thread);
        if (!launch->refusal.empty()) return false;
    }
    return any;
}

std::vector<std::vector<int>> groups_of(Order order, int64_t threads) {
    const bool by_warp = order == Order::warps_ahead || order == Order::warps_ahead_reverse;
    const int64_t size = by_warp ? lanes_in_warp : threads;
    std::vector<std::vector<int>> groups;
    for (int64_t first = 0; first < threads; first += size) {
        groups.emplace_back(size_t(std::min(size, threads - first)));
        std::iota(groups.back().begin(), groups.back().end(), int(first));
    }
    if (order == Order::reverse || order == Order::warps_ahead_reverse) {
        std::reverse(groups.begin(), groups.end());
        for (auto& group : groups) std::reverse(group.begin(), group.end());
    }
    return groups;
}

void run_block(Order order, std::vector<std::vector<int>>& groups, std::mt19937_64& random) {
    launch->left = launch->at_barrier = 0;
#if defined(__SANITIZE_THREAD__)
    launch->stacks.renew();
#endif
    poison_shared();
    for (Thread& thread : launch->threads) {
        forget(thread.fiber);
        thread.fiber.stack = launch->stacks.stack(number_of(thread));
        thread.has_left = false;
        thread.waits_in = Meeting::none;
        prepare(thread.fiber, run_thread);
    }
    const int64_t threads = int64_t(launch->threads.size());
    while (launch->left < threads && launch->refusal.empty()) {
        bool any = false;
        for (auto& group : groups) {
            do {
                if (order == Order::random) std::shuffle(group.begin(), group.end(), random);
                if (!sweep(group)) break;
                any = true;
            } while (groups.size() > 1);
        }
        if (!any && launch->refusal.empty() && launch->left < threads) launch->refusal = stuck();
    }
}

void run_blocks(Order order, uint64_t seed) {
    std::mt19937_64 random(seed);
    auto groups = groups_of(order, int64_t(launch->threads.size()));
    const int64_t blocks = int64_t(gridDim.x) * gridDim.y * gridDim.z;
    std::vector<int64_t> turns(static_cast<size_t>(blocks));
    std::iota(turns.begin(), turns.end(), int64_t(0));
    if (order == Order::reverse || order == Order::warps_ahead_reverse) std::reverse(turns.begin(), turns.end());
    if (order == Order::random) std::shuffle(turns.begin(), turns.end(), random);
    turns.resize(size_t(std::min(blocks, launch->most_blocks)));
    for (const int64_t turn : turns) {
        blockIdx = {uint32_t(turn % gridDim.x), uint32_t(turn / gridDim.x % gridDim.y),
                    uint32_t(turn / gridDim.x / gridDim.y)};
        run_block(order, groups, random);
        if (!launch->refusal.empty()) return;
    }
}

}  // namespace

void* shared_place(void* own, int64_t bytes) {
    for (const Shared& one : static_shared()) {
        if (one.own == own) return one.place;
    }
    static_shared().push_back({own, bytes, place_of(own, bytes)});
    return static_shared().back().place;
}

void* dynamic_shared() { return launch->dynamic_place; }

int lane() { return int(number_of(*launch->running) % lanes_in_warp); }

void refuse(const char* what, Place place) {
    end_launch(name_of(*launch->running) + ": " + what + " at " + name_of(place));
}

void require_aligned(const void* address, int bytes, const char* file, int line) {
    if (reinterpret_cast<uintptr_t>(address) % uintptr_t(bytes) == 0) return;
    refuse(written("address %p is no multiple of %d bytes", address, bytes).c_str(), {file, line});
}

uint64_t meet_block(Meeting meeting, bool predicate, Place place) {
    Thread& thread = *launch->running;
    thread.waits_in = meeting;
    thread.waits_in_name = "__syncthreads";
    thread.place = place;
    thread.predicate = predicate;
    char* tag = &launch->barrier_tags[launch->barriers % 2];
    order_before(tag);
    if (++launch->at_barrier < int64_t(launch->threads.size())) {
        give_way(thread);
        order_after(tag);
        return thread.result;
    }
    int64_t yes = 0;
    for (const Thread& other : launch->threads) {
        if (other.waits_in != meeting || other.place.line != place.line || std::strcmp(other.place.file, place.file)) {
            end_launch(name_of(thread) + " is in the barrier at " + name_of(place) + ", " + name_of(other) +
                       " in that at " + name_of(other.place));
        }
        yes += other.predicate;
    }
    const int64_t threads = int64_t(launch->threads.size());
    const int64_t results[] = {0, 0, yes > 0, yes == threads, yes};
    for (Thread& other : launch->threads) {
        other.result = uint64_t(results[int(meeting)]);
        other.waits_in = Meeting::none;
    }
    launch->at_barrier = 0;
    ++launch->barriers;
    order_after(tag);
    return thread.result;
}

uint64_t meet_warp(Meeting meeting, const char* name, unsigned mask, uint64_t value, int source_lane, Place place) {
    Thread& thread = *launch->running;
    const int own = lane();
    const int64_t warp = number_of(thread) / lanes_in_warp;
    Thread* lanes = &launch->threads[size_t(warp * lanes_in_warp)];
    const int64_t present = std::min<int64_t>(lanes_in_warp, int64_t(launch->threads.size()) - warp * lanes_in_warp);
    const auto in_mask = [&](int lane) { return lane >= 0 && lane < lanes_in_warp && (mask >> lane & 1); };
    if (!in_mask(own)) refuse(written("%s with mask 0x%08x, in which lane %d is not", name, mask, own).c_str(), place);
    if (present < lanes_in_warp && (mask >> present) != 0) {
        refuse(written("%s with mask 0x%08x in a warp of %d threads", name, mask, int(present)).c_str(), place);
    }
    if (source_lane >= 0 && !in_mask(source_lane)) {
        refuse(written("%s reads lane %d, which is not in mask 0x%08x", name, source_lane, mask).c_str(), place);
    }
    thread.waits_in = meeting;
    thread.waits_in_name = name;
    thread.place = place;
    thread.mask = mask;
    thread.value = value;
    thread.source_lane = source_lane;
    // A shuffle orders no accesses to memory: only __syncwarp does.
    const bool orders = meeting == Meeting::sync_warp;
    char* tag = &launch->warp_tags[size_t(warp * 2 + launch->warp_syncs[size_t(warp)] % 2)];
    if (orders) order_before(tag);
    const auto has_come = [&](int lane) {
        const Thread& other = lanes[lane];
        return !other.has_left && other.waits_in == meeting && other.mask == mask && other.waits_in_name == name;
    };
    uint64_t votes = 0;
    for (int other = 0; other < present; ++other) {
        if (!in_mask(other)) continue;
        if (!has_come(other)) {
            give_way(thread);
            if (orders) order_after(tag);
            return thread.result;
        }
        if (lanes[other].value) votes |= uint64_t(1) << other;
    }
    for (int other = 0; other < present; ++other) {
        if (!in_mask(other)) continue;
        const int from = lanes[other].source_lane;
        lanes[other].result = meeting == Meeting::vote ? votes : lanes[from < 0 ? other : from].value;
    }
    for (int other = 0; other < present; ++other) {
        if (in_mask(other)) lanes[other].waits_in = Meeting::none;
    }
    if (orders) {
        ++launch->warp_syncs[size_t(warp)];
        order_after(tag);
    }
    return thread.result;
}

}  // namespace emulator

// Runs `call`, a kernel's `__call`, over a grid, of which the first `most_blocks` in that order. sizes: grid x, y, z,
// block x, y, z. 0, or 1 with one line in `message`. Not to be called by two threads at once: the kernels' shared
// arrays are statics.
extern "C" __attribute__((visibility("default"))) int emulator_launch(void (*call)(void**), const int64_t* sizes,
                                                                      int64_t shared_bytes, void** arguments, int order,
                                                                      uint64_t seed, int64_t most_blocks,
                                                                      const char* kernel, char* message,
                                                                      int64_t message_bytes) {
    using namespace emulator;
    static std::mutex one_at_a_time;
    const std::lock_guard<std::mutex> alone(one_at_a_time);
    Launch at_work(sizes[3] * sizes[4] * sizes[5]);
    launch = &at_work;
    at_work.call = call;
    at_work.arguments = arguments;
    at_work.most_blocks = most_blocks;
    gridDim = {uint32_t(sizes[0]), uint32_t(sizes[1]), uint32_t(sizes[2])};
    blockDim = {uint32_t(sizes[3]), uint32_t(sizes[4]), uint32_t(sizes[5])};
    const int64_t threads = int64_t(at_work.threads.size());
    at_work.warp_tags.resize(size_t(threads / lanes_in_warp + 1) * 2);
    at_work.warp_syncs.resize(size_t(threads / lanes_in_warp + 1));
    at_work.dynamic_count = shared_bytes;
    at_work.dynamic_bytes = std::make_unique<unsigned char[]>(size_t(shared_bytes));
    if (!at_work.stacks.are_there()) at_work.refusal = "no memory for the stacks of its threads";
    adopt(at_work.scheduler);
    for (int64_t at = 0; at < threads; ++at) {
        Thread& thread = at_work.threads[size_t(at)];
        thread.index = {uint32_t(at % sizes[3]), uint32_t(at / sizes[3] % sizes[4]),
                        uint32_t(at / sizes[3] / sizes[4])};
        thread.fiber.stack_bytes = stack_bytes;
    }
    if (at_work.refusal.empty()) run_blocks(Order(order), seed);
    order_after(&at_work.scheduler);
    for (Thread& thread : at_work.threads) forget(thread.fiber);
    launch = nullptr;
    if (at_work.refusal.empty()) return 0;
    std::snprintf(message, size_t(message_bytes), "%s: %s", kernel, at_work.refusal.c_str());
    return 1;
}

// A launch on the CPU: its blocks one after another, the threads of a block as fibers in a chosen order.
//
// A thread runs until it waits at a barrier or in an operation of its warp. What a chip leaves undefined ends the
// launch with a line that names kernel, thread and place: barriers that not all threads reach, or reach in different
// places; a lane that is not in its own mask, waits for one that has left, or reads from one outside the mask; an early
// exit; a misaligned vector. Shared memory holds 0xff, a NaN in every format, before each block.
#include <algorithm>
#include <cstdio>
#include <mutex>
#include <numeric>
#include <random>

#include "launch.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace emulator {

Launch* launch = nullptr;

namespace {

// `warps_ahead` lets each warp run as far as it can before the next one starts, which shows a missing barrier at a
// loop's end.
enum class Order : int { forward, reverse, random, warps_ahead, warps_ahead_reverse };

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

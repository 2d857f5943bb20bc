// Where threads wait for each other: barriers of a block and operations of a warp, and what is said where they cannot
// meet or where one does what no chip defines.
#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "launch.h"

namespace emulator {

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

namespace {

// From a thread: back to the scheduler, which ends the launch. The thread's stack is left as it is.
[[noreturn]] void end_launch(std::string why) {
    launch->refusal = std::move(why);
    switch_fiber(launch->running->fiber, launch->scheduler);
    __builtin_unreachable();
}

}  // namespace

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

// Memory for operands, placed so that access outside of it is an error.

#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include <sys/mman.h>
#include <unistd.h>

namespace driver {

// END and BEGIN: as close as possible before, or after, a page without access. HEAP: between the zones that
// AddressSanitizer watches.
enum class Place : int64_t { END, BEGIN, HEAP };

class Memory {
 public:
  Memory(int64_t size, Place place) : size_(size), place_(place) {
    if (place == Place::HEAP) {
      data_ = static_cast<char*>(std::malloc(size));
    } else {
      const int64_t page = sysconf(_SC_PAGESIZE);
      room_ = (size + page - 1) / page * page;
      mapped_ = room_ + 2 * page;
      map_ = static_cast<char*>(mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
      if (map_ == MAP_FAILED) std::abort();
      if (room_ > 0 && mprotect(map_ + page, room_, PROT_READ | PROT_WRITE) != 0) std::abort();
      data_ = map_ + page + (place == Place::END ? room_ - size : 0);
    }
    // As floating-point numbers: NaN, so that what is not written shows.
    if (size > 0) std::memset(data_, 0xff, size);
  }

  ~Memory() {
    if (place_ == Place::HEAP) {
      std::free(data_);
    } else {
      munmap(map_, mapped_);
    }
  }

  Memory(const Memory&) = delete;

  char* data() const { return data_; }
  int64_t size() const { return size_; }

  // Makes writing an error.
  void protect() const {
    const int64_t page = sysconf(_SC_PAGESIZE);
    if (place_ != Place::HEAP && room_ > 0 && mprotect(map_ + page, room_, PROT_READ) != 0) std::abort();
  }

 private:
  int64_t size_, room_ = 0, mapped_ = 0;
  Place place_;
  char* data_ = nullptr;
  char* map_ = nullptr;
};

}  // namespace driver

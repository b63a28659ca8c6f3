// Releases Python's lock while a program runs, so that other threads of Python run meanwhile.
//
// torch's binding keeps the lock. A program disables gradients when it begins and restores the setting when it
// ends, also by an exception: this definition, within the program, adds the lock to both.

#include <c10/core/GradMode.h>

#include <utility>

extern "C" {

// Of the process that loads the program, which need not be Python.
struct PyThreadState;
__attribute__((weak)) int PyGILState_Check();
__attribute__((weak)) PyThreadState* PyEval_SaveThread();
__attribute__((weak)) void PyEval_RestoreThread(PyThreadState*);

__attribute__((visibility("hidden"))) void aoti_torch_grad_mode_set_enabled(bool enabled) {
  static thread_local PyThreadState* released = nullptr;
  c10::GradMode::set_enabled(enabled);
  if (released) {
    PyEval_RestoreThread(std::exchange(released, nullptr));
  } else if (!enabled && PyGILState_Check && PyGILState_Check()) {
    released = PyEval_SaveThread();
  }
}

}

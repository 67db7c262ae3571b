//! The objects behind C's pointers; checks for wrong pointers, concurrent use and panics.
//!
//! A pointer from C may be null, may point to another kind of object, or may be used by two threads at once: each of these
//! is detected, and is an error. A pointer to freed memory, or to no object of this library, may go undetected.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::status::{Fault, spw_status};

/// The target of a C handle. All kinds begin with the [`Head`], whose tag identifies the kind.
#[repr(C)]
struct Object<T> {
    head: Head,
    value: UnsafeCell<T>,
}

#[repr(C)]
struct Head {
    tag: AtomicU32,
    /// Number of calls that read the object now, or one of the constants below.
    state: AtomicU32,
}

const UNUSED: u32 = 0;
/// One call uses the object exclusively.
const BUSY: u32 = u32::MAX;
/// A panic interrupted a call: the object can only be freed.
const BROKEN: u32 = u32::MAX - 1;

/// An opaque C type: a pointer to it points to an [`Object`] with the value.
pub(crate) trait Handle {
    type Value: Send + 'static;
    /// Unique for each kind.
    const TAG: u32;
    /// The type's name in C.
    const NAME: &'static str;
}

/// Makes an object for C; C must free it.
pub(crate) fn new_handle<H: Handle>(value: H::Value) -> *mut H {
    let head = Head { tag: AtomicU32::new(H::TAG), state: AtomicU32::new(UNUSED) };
    Box::into_raw(Box::new(Object { head, value: UnsafeCell::new(value) })).cast()
}

/// Exclusive use of an object by one call.
struct Exclusive<T: 'static>(&'static Object<T>);

impl<T> Drop for Exclusive<T> {
    fn drop(&mut self) {
        let state = if std::thread::panicking() { BROKEN } else { UNUSED };
        self.0.head.state.store(state, Ordering::Release);
    }
}

/// Checks that a pointer points to an object of the right kind.
///
/// # Safety
/// The pointer is null, or was made by [`new_handle`] and is not freed.
unsafe fn find<H: Handle>(handle: *const H) -> Result<&'static Object<H::Value>, Fault> {
    let object = handle.cast::<Object<H::Value>>();
    let refused = |why: &str| Fault::invalid(format!("{why} instead of a {}", H::NAME));
    if object.is_null() {
        return Err(refused("a null pointer"));
    }
    if !object.is_aligned() {
        return Err(refused("a pointer to something else"));
    }
    // SAFETY: aligned, and the caller guarantees an `Object` of any kind: all kinds begin with a head.
    let head = unsafe { &*object.cast::<Head>() };
    if head.tag.load(Ordering::Relaxed) != H::TAG {
        return Err(refused("an object of another kind, or one that was freed,"));
    }
    // SAFETY: the tag proves the kind. The reference is used within one call only.
    Ok(unsafe { &*object })
}

/// Takes the object for exclusive use by one call.
///
/// # Safety
/// As for [`find`].
unsafe fn take<H: Handle>(handle: *const H, to_free: bool) -> Result<Exclusive<H::Value>, Fault> {
    // SAFETY: the caller guarantees what the callee requires.
    let object = unsafe { find(handle) }?;
    let swap = |from| object.head.state.compare_exchange(from, BUSY, Ordering::Acquire, Ordering::Relaxed);
    match swap(UNUSED) {
        Ok(_) => Ok(Exclusive(object)),
        Err(BROKEN) if to_free && swap(BROKEN).is_ok() => Ok(Exclusive(object)),
        Err(state) => Err(in_use_fault::<H>(state)),
    }
}

fn in_use_fault<H: Handle>(state: u32) -> Fault {
    match state {
        BROKEN => Fault::new(
            spw_status::SPW_INTERNAL,
            format!("a fault inside the library has interrupted a call with this {}: free it", H::NAME),
        ),
        _ => Fault::invalid(format!("this {} is used by another thread at this moment", H::NAME)),
    }
}

/// Shared use of an object by one of several calls.
struct Reading<'a>(&'a AtomicU32);

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// Runs a body that reads the object; several calls may read at once.
///
/// # Safety
/// As for [`find`].
pub(crate) unsafe fn read<H: Handle, R>(
    handle: *const H,
    body: impl FnOnce(&H::Value) -> Result<R, Fault>,
) -> Result<R, Fault>
where
    H::Value: Sync,
{
    // SAFETY: the caller guarantees what the callee requires.
    let object = unsafe { find(handle) }?;
    let count_reader = |readers: u32| (readers < BROKEN - 1).then(|| readers + 1);
    let _reading = match object.head.state.fetch_update(Ordering::Acquire, Ordering::Relaxed, count_reader) {
        Ok(_) => Reading(&object.head.state),
        Err(state) => return Err(in_use_fault::<H>(state)),
    };
    // SAFETY: while `state` counts readers, no call has exclusive use.
    body(unsafe { &*object.value.get() })
}

/// Runs a body with exclusive use of the object.
///
/// # Safety
/// As for [`find`].
pub(crate) unsafe fn with<H: Handle, R>(
    handle: *const H,
    body: impl FnOnce(&mut H::Value) -> Result<R, Fault>,
) -> Result<R, Fault> {
    // SAFETY: the caller guarantees what the callee requires.
    let exclusive = unsafe { take(handle, false) }?;
    // SAFETY: `take` grants exclusive use, until `exclusive` is dropped.
    body(unsafe { &mut *exclusive.0.value.get() })
}

/// Frees an object. Null is allowed.
///
/// # Safety
/// As for [`find`]; and the pointer is not used again.
pub(crate) unsafe fn free<H: Handle>(handle: *mut H) -> Result<(), Fault> {
    if handle.is_null() {
        return Ok(());
    }
    // SAFETY: the caller guarantees what the callee requires.
    let exclusive = unsafe { take(handle, true) }?;
    exclusive.0.head.tag.store(0, Ordering::Relaxed);
    // The state stays BUSY: `Exclusive::drop` must not write to freed memory.
    std::mem::forget(exclusive);
    // SAFETY: `new_handle` made it with a box. This call has exclusive use, and the cleared tag prevents another.
    drop(unsafe { Box::from_raw(handle.cast::<Object<H::Value>>()) });
    Ok(())
}

/// Writes a result to the caller's memory.
///
/// # Safety
/// The pointer is null, or valid for writing a `T`.
pub(crate) unsafe fn write_result<T>(target: *mut T, name: &str, value: T) -> Result<(), Fault> {
    if target.is_null() || !target.is_aligned() {
        return Err(Fault::new(
            spw_status::SPW_INVALID,
            format!("{name} is null, or points to something else"),
        ));
    }
    // SAFETY: not null, aligned, and the caller guarantees that it is valid for writing.
    unsafe { target.write(value) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::ptr::null;

    use super::*;

    struct Number;
    struct Other;

    impl Handle for Number {
        type Value = u64;
        const TAG: u32 = 1;
        const NAME: &'static str = "number";
    }

    impl Handle for Other {
        type Value = u64;
        const TAG: u32 = 2;
        const NAME: &'static str = "other";
    }

    fn increase(handle: *const Number) -> Result<u64, Fault> {
        // SAFETY: the tests pass objects or null.
        unsafe {
            with(handle, |number| {
                *number += 1;
                Ok(*number)
            })
        }
    }

    #[test]
    fn object_keeps_its_value_until_freed() {
        let handle = new_handle::<Number>(1);
        assert_eq!(increase(handle).unwrap(), 2);
        assert_eq!(increase(handle).unwrap(), 3);
        // SAFETY: the object is not used again.
        unsafe { free(handle) }.unwrap();
    }

    #[test]
    fn wrong_pointers_are_refused() {
        assert!(increase(null()).is_err());
        let other = new_handle::<Other>(1);
        assert!(increase(other.cast()).is_err());
        assert!(increase(other.wrapping_byte_add(1).cast()).is_err());
        // SAFETY: the object is not used again; null is allowed.
        unsafe {
            free(other).unwrap();
            free::<Other>(std::ptr::null_mut()).unwrap();
        }
    }

    #[test]
    fn concurrent_exclusive_use_is_refused() {
        let handle = new_handle::<Number>(1);
        // SAFETY: the object is freed below.
        let is_refused = unsafe { with(handle, |_| Ok(increase(handle).is_err())) };
        assert!(is_refused.unwrap());
        // SAFETY: `free` fails while the object is in use.
        let freed = unsafe { with(handle, |_| Ok(free(handle).is_ok())) };
        assert!(!freed.unwrap());
        assert_eq!(increase(handle).unwrap(), 2);
        // SAFETY: the object is not used again.
        unsafe { free(handle) }.unwrap();
    }

    #[test]
    fn concurrent_reads_are_allowed_and_exclude_changes() {
        let handle = new_handle::<Number>(1);
        let read_during = |body: &dyn Fn() -> bool| {
            // SAFETY: the object is freed below.
            unsafe { read(handle.cast_const(), |number| Ok(*number == 1 && body())) }.unwrap()
        };
        assert!(read_during(&|| read_during(&|| increase(handle).is_err()) && increase(handle).is_err()));
        assert_eq!(increase(handle).unwrap(), 2);
        // SAFETY: the object is freed below; `read` fails while another call has exclusive use.
        let is_refused = unsafe { with(handle, |_| Ok(read(handle.cast_const(), |_| Ok(())).is_err())) };
        assert!(is_refused.unwrap());
        // SAFETY: the object is not used again.
        unsafe { free(handle) }.unwrap();
    }

    #[test]
    fn object_is_unusable_after_a_panic() {
        let handle = new_handle::<Number>(1);
        // SAFETY: the object is freed below.
        let outcome = catch_unwind(AssertUnwindSafe(|| unsafe {
            with(handle, |_| -> Result<(), Fault> { panic!("a fault") })
        }));
        assert!(outcome.is_err() && increase(handle).is_err());
        // SAFETY: the object is not used again.
        unsafe { free(handle) }.unwrap();
    }
}

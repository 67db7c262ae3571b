//! What C holds a pointer to, and how a wrong pointer, a second thread and a panic are met.
//!
//! A pointer from C may be null, of another kind of object, or used by two threads at once. All of these are noticed and
//! are an error; a pointer that was freed, or that was never ours, cannot be told for certain.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::status::{Fault, spw_status};

/// What a handle of C's points to. It begins with the [`Head`], so that an object of another kind can be told by it.
#[repr(C)]
struct Object<T> {
    head: Head,
    value: UnsafeCell<T>,
}

#[repr(C)]
struct Head {
    tag: AtomicU32,
    /// How many read it at this moment, or one of those below.
    state: AtomicU32,
}

const FREE: u32 = 0;
/// One call has it alone.
const BUSY: u32 = u32::MAX;
/// A panic left it in the middle of something: it can only be freed.
const BROKEN: u32 = u32::MAX - 1;

/// What C sees by its name only: a pointer to it is one to an object with the value.
pub(crate) trait Handle {
    type Value: Send + 'static;
    /// Tells its kind from all others.
    const TAG: u32;
    /// Its name in C.
    const NAME: &'static str;
}

/// An object for C, which has to free it.
pub(crate) fn give<H: Handle>(value: H::Value) -> *mut H {
    let head = Head { tag: AtomicU32::new(H::TAG), state: AtomicU32::new(FREE) };
    Box::into_raw(Box::new(Object { head, value: UnsafeCell::new(value) })).cast()
}

/// An object that is used, by one call alone.
struct Taken<T: 'static>(&'static Object<T>);

impl<T> Drop for Taken<T> {
    fn drop(&mut self) {
        let state = if std::thread::panicking() { BROKEN } else { FREE };
        self.0.head.state.store(state, Ordering::Release);
    }
}

/// Looks whether a pointer is to an object of the right kind.
///
/// # Safety
/// The pointer is null, or one that [`give`] made and that is not freed.
unsafe fn find<H: Handle>(handle: *const H) -> Result<&'static Object<H::Value>, Fault> {
    let object = handle.cast::<Object<H::Value>>();
    let wrong = |why: &str| Fault::invalid(format!("{why} instead of a {}", H::NAME));
    if object.is_null() {
        return Err(wrong("a null pointer"));
    }
    if !object.is_aligned() {
        return Err(wrong("a pointer to something else"));
    }
    // SAFETY: aligned, and by the caller's word an object of ours, of whichever kind: all begin with a head.
    let head = unsafe { &*object.cast::<Head>() };
    if head.tag.load(Ordering::Relaxed) != H::TAG {
        return Err(wrong("an object of another kind, or one that was freed,"));
    }
    // SAFETY: its tag says that it is of this kind. The reference is used within one call only.
    Ok(unsafe { &*object })
}

/// Takes the object for one call, alone.
///
/// # Safety
/// As of [`find`].
unsafe fn take<H: Handle>(handle: *const H, to_free: bool) -> Result<Taken<H::Value>, Fault> {
    // SAFETY: the caller vouches for it.
    let object = unsafe { find(handle) }?;
    let swap = |from| object.head.state.compare_exchange(from, BUSY, Ordering::Acquire, Ordering::Relaxed);
    match swap(FREE) {
        Ok(_) => Ok(Taken(object)),
        Err(BROKEN) if to_free && swap(BROKEN).is_ok() => Ok(Taken(object)),
        Err(state) => Err(in_use::<H>(state)),
    }
}

fn in_use<H: Handle>(state: u32) -> Fault {
    match state {
        BROKEN => Fault::new(
            spw_status::SPW_INTERNAL,
            format!("this {} was left by a fault inside the library: free it", H::NAME),
        ),
        _ => Fault::invalid(format!("this {} is used by another thread at this moment", H::NAME)),
    }
}

/// An object that is read, by several calls perhaps.
struct Reading<'a>(&'a AtomicU32);

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// Lets a body read the object, with others that only read it.
///
/// # Safety
/// As of [`find`].
pub(crate) unsafe fn read<H: Handle, R>(
    handle: *const H,
    body: impl FnOnce(&H::Value) -> Result<R, Fault>,
) -> Result<R, Fault>
where
    H::Value: Sync,
{
    // SAFETY: the caller vouches for it.
    let object = unsafe { find(handle) }?;
    let one_more = |readers: u32| (readers < BROKEN - 1).then(|| readers + 1);
    let _reading = match object.head.state.fetch_update(Ordering::Acquire, Ordering::Relaxed, one_more) {
        Ok(_) => Reading(&object.head.state),
        Err(state) => return Err(in_use::<H>(state)),
    };
    // SAFETY: while it is read nobody has it alone.
    body(unsafe { &*object.value.get() })
}

/// Lets a body use the object, alone.
///
/// # Safety
/// As of [`find`].
pub(crate) unsafe fn with<H: Handle, R>(
    handle: *const H,
    body: impl FnOnce(&mut H::Value) -> Result<R, Fault>,
) -> Result<R, Fault> {
    // SAFETY: the caller vouches for it.
    let taken = unsafe { take(handle, false) }?;
    // SAFETY: `take` lets one caller in at a time, and the next one only when this one is through.
    body(unsafe { &mut *taken.0.value.get() })
}

/// Frees an object; null is nothing to free.
///
/// # Safety
/// As of [`find`]; and it is not used again.
pub(crate) unsafe fn free<H: Handle>(handle: *mut H) -> Result<(), Fault> {
    if handle.is_null() {
        return Ok(());
    }
    // SAFETY: the caller vouches for it.
    let taken = unsafe { take(handle, true) }?;
    taken.0.head.tag.store(0, Ordering::Relaxed);
    // It stays taken: what is freed is not given back.
    std::mem::forget(taken);
    // SAFETY: `give` made it with a box; taken, it is nobody else's, and its tag keeps it from being taken again.
    drop(unsafe { Box::from_raw(handle.cast::<Object<H::Value>>()) });
    Ok(())
}

/// Writes to where C asked for it.
///
/// # Safety
/// The pointer is null, or good for writing a `T`.
pub(crate) unsafe fn answer<T>(place: *mut T, name: &str, value: T) -> Result<(), Fault> {
    if place.is_null() || !place.is_aligned() {
        return Err(Fault::new(
            spw_status::SPW_INVALID,
            format!("{name} is null, or points to something else"),
        ));
    }
    // SAFETY: not null, aligned, and good for writing by the caller's word.
    unsafe { place.write(value) };
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
        // SAFETY: the tests give objects, or nothing.
        unsafe {
            with(handle, |number| {
                *number += 1;
                Ok(*number)
            })
        }
    }

    #[test]
    fn an_object_is_used_and_freed() {
        let handle = give::<Number>(1);
        assert_eq!(increase(handle).unwrap(), 2);
        assert_eq!(increase(handle).unwrap(), 3);
        // SAFETY: it is not used again.
        unsafe { free(handle) }.unwrap();
    }

    #[test]
    fn wrong_pointers_are_told() {
        assert!(increase(null()).is_err());
        let other = give::<Other>(1);
        assert!(increase(other.cast()).is_err());
        assert!(increase(other.wrapping_byte_add(1).cast()).is_err());
        // SAFETY: it is not used again; null is nothing.
        unsafe {
            free(other).unwrap();
            free::<Other>(std::ptr::null_mut()).unwrap();
        }
    }

    #[test]
    fn whoever_comes_while_another_uses_it_is_told() {
        let handle = give::<Number>(1);
        // SAFETY: it is freed below.
        let inner = unsafe { with(handle, |_| Ok(increase(handle).is_err())) };
        assert!(inner.unwrap());
        // SAFETY: while it is used it is not freed.
        let freed = unsafe { with(handle, |_| Ok(free(handle).is_ok())) };
        assert!(!freed.unwrap());
        assert_eq!(increase(handle).unwrap(), 2);
        // SAFETY: it is not used again.
        unsafe { free(handle) }.unwrap();
    }

    #[test]
    fn several_read_it_and_nobody_changes_it_meanwhile() {
        let handle = give::<Number>(1);
        let read_by = |body: &dyn Fn() -> bool| {
            // SAFETY: it is freed below.
            unsafe { read(handle.cast_const(), |number| Ok(*number == 1 && body())) }.unwrap()
        };
        assert!(read_by(&|| read_by(&|| increase(handle).is_err()) && increase(handle).is_err()));
        assert_eq!(increase(handle).unwrap(), 2);
        // SAFETY: it is freed below; who reads it while another has it alone is told.
        let inner = unsafe { with(handle, |_| Ok(read(handle.cast_const(), |_| Ok(())).is_err())) };
        assert!(inner.unwrap());
        // SAFETY: it is not used again.
        unsafe { free(handle) }.unwrap();
    }

    #[test]
    fn after_a_fault_nobody_uses_it() {
        let handle = give::<Number>(1);
        // SAFETY: it is freed below.
        let outcome = catch_unwind(AssertUnwindSafe(|| unsafe {
            with(handle, |_| -> Result<(), Fault> { panic!("a fault") })
        }));
        assert!(outcome.is_err() && increase(handle).is_err());
        // SAFETY: it is not used again.
        unsafe { free(handle) }.unwrap();
    }
}

//! The `layout!` macro: a device structure as a typed, big-endian view over its bytes.
//!
//! The manuals describe each field as "byte offset of a 32-bit big-endian word, bits hi..lo". That is
//! written here literally: `LOG_EQ_SIZE: 0x0c[28:24];`. Each field becomes a typed constant of its
//! structure, so a field of one structure can't be read from another, and a structure can be
//! printed field by field for a diagnosis.
//!
//! The structures are plain byte arrays with `zerocopy` derives: any byte slice of sufficient
//! length can be viewed without a copy (`Eqc::ref_from_prefix(bytes)`), and no value of the bytes
//! is invalid.

use core::marker::PhantomData;

/// A field of at most 32 bits within one big-endian 32-bit word of structure `L`.
pub struct Field<L> {
    name: &'static str,
    word: u16,
    lo: u8,
    width: u8,
    of: PhantomData<fn() -> L>,
}

/// A big-endian 64-bit field of structure `L`.
pub struct Field64<L> {
    name: &'static str,
    offset: u16,
    of: PhantomData<fn() -> L>,
}

impl<L> Clone for Field<L> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<L> Copy for Field<L> {}
impl<L> Clone for Field64<L> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<L> Copy for Field64<L> {}

impl<L> Field<L> {
    /// Describes bits `hi..=lo` of the 32-bit word at byte `offset` (which must be 4-aligned).
    ///
    /// Evaluated at compile time: a field that does not fit in `size` bytes fails the build.
    pub const fn new(name: &'static str, offset: usize, hi: u8, lo: u8, size: usize) -> Self {
        assert!(offset.is_multiple_of(4) && offset + 4 <= size && hi >= lo && hi < 32);
        Self { name, word: offset as u16, lo, width: hi - lo + 1, of: PhantomData }
    }

    /// The largest value the field can hold.
    pub const fn max(self) -> u32 {
        u32::MAX >> (32 - self.width)
    }

    /// The field's name as the manual spells it, in capitals.
    pub const fn name(self) -> &'static str {
        self.name
    }

    /// Byte offset of the field's 32-bit word.
    pub const fn offset(self) -> usize {
        self.word as usize
    }

    /// Position of the lowest bit within the word.
    pub const fn shift(self) -> u32 {
        self.lo as u32
    }

    /// The field as data, without its documentation.
    pub const fn info(self) -> FieldInfo {
        FieldInfo {
            name: self.name,
            offset: self.word as usize,
            hi: self.lo + self.width - 1,
            lo: self.lo,
            doc: &[],
        }
    }
}

impl<L> Field64<L> {
    /// Describes the 64-bit word at byte `offset`.
    pub const fn new(name: &'static str, offset: usize, size: usize) -> Self {
        assert!(offset.is_multiple_of(4) && offset + 8 <= size);
        Self { name, offset: offset as u16, of: PhantomData }
    }

    /// The field's name as the manual spells it, in capitals.
    pub const fn name(self) -> &'static str {
        self.name
    }

    /// Byte offset of the field.
    pub const fn offset(self) -> usize {
        self.offset as usize
    }

    /// The field as data, without its documentation.
    pub const fn info(self) -> FieldInfo {
        FieldInfo { name: self.name, offset: self.offset as usize, hi: 63, lo: 0, doc: &[] }
    }
}

/// What `get` and `set` accept: a [`Field`] (value `u32`) or a [`Field64`] (value `u64`).
pub trait Access<L> {
    /// The value's type.
    type Value;
    /// Reads the field from the structure's bytes.
    fn read(self, bytes: &[u8]) -> Self::Value;
    /// Writes the field; bits beyond its width are cut off.
    fn write(self, bytes: &mut [u8], value: Self::Value);
}

impl<L> Access<L> for Field<L> {
    type Value = u32;

    #[inline(always)]
    fn read(self, bytes: &[u8]) -> u32 {
        (be32(bytes, self.word as usize) >> self.lo) & self.max()
    }

    #[inline(always)]
    fn write(self, bytes: &mut [u8], value: u32) {
        let mask = self.max() << self.lo;
        let old = be32(bytes, self.word as usize);
        put_be32(bytes, self.word as usize, (old & !mask) | ((value << self.lo) & mask));
    }
}

impl<L> Access<L> for Field64<L> {
    type Value = u64;

    #[inline(always)]
    fn read(self, bytes: &[u8]) -> u64 {
        be64(bytes, self.offset as usize)
    }

    #[inline(always)]
    fn write(self, bytes: &mut [u8], value: u64) {
        put_be32(bytes, self.offset as usize, (value >> 32) as u32);
        put_be32(bytes, self.offset as usize + 4, value as u32);
    }
}

/// Reads a big-endian 32-bit word; bytes beyond the end of `bytes` read as zero.
#[inline(always)]
pub fn be32(bytes: &[u8], offset: usize) -> u32 {
    match bytes.get(offset..).and_then(|b| b.first_chunk::<4>()) {
        Some(word) => u32::from_be_bytes(*word),
        None => 0,
    }
}

/// Reads a big-endian 64-bit word; bytes beyond the end of `bytes` read as zero.
#[inline(always)]
pub fn be64(bytes: &[u8], offset: usize) -> u64 {
    match bytes.get(offset..).and_then(|b| b.first_chunk::<8>()) {
        Some(word) => u64::from_be_bytes(*word),
        None => 0,
    }
}

/// Writes a big-endian 32-bit word; a write beyond the end of `bytes` is dropped.
#[inline(always)]
pub fn put_be32(bytes: &mut [u8], offset: usize, value: u32) {
    if let Some(word) = bytes.get_mut(offset..).and_then(|b| b.first_chunk_mut::<4>()) {
        *word = value.to_be_bytes();
    }
}

/// Writes a big-endian 64-bit word; a write beyond the end of `bytes` is dropped.
#[inline(always)]
pub fn put_be64(bytes: &mut [u8], offset: usize, value: u64) {
    if let Some(word) = bytes.get_mut(offset..).and_then(|b| b.first_chunk_mut::<8>()) {
        *word = value.to_be_bytes();
    }
}

/// One field of a [`Layout`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldInfo {
    /// The field's name as the manual spells it, in capitals.
    pub name: &'static str,
    /// Byte offset of the field's 32-bit word, or of the field's first byte if it has 64 bits.
    pub offset: usize,
    /// Highest bit of a field within a 32-bit word; 63 of a 64-bit field.
    pub hi: u8,
    /// Lowest bit.
    pub lo: u8,
    /// The lines of its documentation.
    pub doc: &'static [&'static str],
}

impl FieldInfo {
    /// The field's value in the bytes of its structure; what is beyond their end reads as zero.
    pub fn value(&self, bytes: &[u8]) -> u64 {
        if self.hi > 31 {
            return be64(bytes, self.offset);
        }
        let width = u32::from(self.hi.saturating_sub(self.lo)) + 1;
        u64::from(be32(bytes, self.offset) >> self.lo) & (u64::MAX >> (64 - width))
    }
}

/// A structure within a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViewInfo {
    /// Name of the function that returns it.
    pub name: &'static str,
    /// Byte offset of the inner structure.
    pub offset: usize,
    /// Its type, as the source spells it.
    pub of: &'static str,
    /// The lines of its documentation.
    pub doc: &'static [&'static str],
}

/// A structure as data: what the pages of `specs/doc` show as tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Name of the type.
    pub name: &'static str,
    /// Size in bytes.
    pub size: usize,
    /// The lines of its documentation.
    pub doc: &'static [&'static str],
    /// Its fields, in the order of the source.
    pub fields: &'static [FieldInfo],
    /// The structures within it.
    pub views: &'static [ViewInfo],
}

impl ViewInfo {
    /// The structure that it is, if this crate has it.
    pub fn layout(&self) -> Option<&'static Layout> {
        let name = self.of.rsplit("::").next().unwrap_or(self.of);
        crate::layout_named(name.trim())
    }
}

impl Layout {
    /// Visits the fields in the bytes of a structure, and those of the structures within it: the name of the view that a
    /// field is in, empty for the structure's own, the field, and its value.
    pub fn decode(&self, bytes: &[u8], visit: &mut dyn FnMut(&'static str, &'static FieldInfo, u64)) {
        self.decode_within("", bytes, visit);
    }

    fn decode_within(
        &self,
        view: &'static str,
        bytes: &[u8],
        visit: &mut dyn FnMut(&'static str, &'static FieldInfo, u64),
    ) {
        self.fields.iter().for_each(|field| visit(view, field, field.value(bytes)));
        for inner in self.views {
            if let (Some(layout), Some(bytes)) = (inner.layout(), bytes.get(inner.offset..)) {
                layout.decode_within(inner.name, bytes, visit);
            }
        }
    }
}

/// Declares structures over big-endian bytes. See the [module documentation](self).
///
/// Each structure has a constant `LAYOUT`, its [`Layout`] as data, and the module gets `LAYOUTS`, all of them:
/// a module has one `layout!`.
///
/// ```text
/// layout! {
///     /// An example of sixteen bytes.
///     pub struct Example[16] {
///         /// Bits 27..24 of the word at byte 0.
///         KIND: 0x0 [27:24];
///         /// A 64-bit number at byte 8.
///         ADDRESS: 0x8 u64;
///     } views {
///         /// A structure inside this one, from byte 4 on.
///         inner, inner_mut: 0x4 Inner;
///     }
/// }
/// ```
macro_rules! layout {
    ($(
        $(#[doc = $sdoc:literal])*
        pub struct $name:ident[$size:expr] {
            $( $(#[doc = $fdoc:literal])* $field:ident : $offset:literal $spec:tt; )*
        } $( views {
            $( $(#[doc = $vdoc:literal])* $view:ident, $view_mut:ident : $voffset:literal $vty:ty; )*
        } )?
    )*) => {
        /// Every structure of this module, as data.
        pub const LAYOUTS: &[$crate::layout::Layout] = &[$( $name::LAYOUT, )*];

        $(
        $(#[doc = $sdoc])*
        #[derive(
            Clone, Copy, PartialEq, Eq,
            zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable,
            zerocopy::KnownLayout, zerocopy::Unaligned,
        )]
        #[repr(transparent)]
        pub struct $name([u8; $size]);

        impl $name {
            /// Size of the structure in bytes.
            pub const SIZE: usize = $size;

            /// The structure as data: name, size and fields.
            pub const LAYOUT: $crate::layout::Layout = $crate::layout::Layout {
                name: stringify!($name),
                size: $size,
                doc: &[$($sdoc),*],
                fields: &[$( $crate::layout::FieldInfo {
                    name: stringify!($field),
                    doc: &[$($fdoc),*],
                    ..Self::$field.info()
                }, )*],
                views: &[$($( $crate::layout::ViewInfo {
                    name: stringify!($view),
                    offset: $voffset,
                    of: stringify!($vty),
                    doc: &[$($vdoc),*],
                }, )*)?],
            };

            $( $crate::layout::layout!(@field $(#[doc = $fdoc])* $field $offset $size; $spec); )*

            /// The structure with every bit zero.
            pub const fn new() -> Self {
                Self([0; $size])
            }

            /// A copy of the first bytes of `bytes`; what is missing at the end is zero.
            #[inline]
            pub fn from_prefix_or_zero(bytes: &[u8]) -> Self {
                if let Some(whole) = bytes.first_chunk() {
                    return Self(*whole);
                }
                let mut s = Self::new();
                s.0.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
                s
            }

            /// The value of `field`.
            #[inline(always)]
            pub fn get<F: $crate::layout::Access<Self>>(&self, field: F) -> F::Value {
                field.read(&self.0)
            }

            /// Sets `field`; bits beyond its width are cut off.
            #[inline(always)]
            pub fn set<F: $crate::layout::Access<Self>>(&mut self, field: F, value: F::Value) -> &mut Self {
                field.write(&mut self.0, value);
                self
            }

            /// The structure's bytes.
            pub const fn bytes(&self) -> &[u8; $size] {
                &self.0
            }

            /// The structure's bytes, to change.
            pub const fn bytes_mut(&mut self) -> &mut [u8; $size] {
                &mut self.0
            }

            $($(
                $(#[doc = $vdoc])*
                pub fn $view(&self) -> &$vty {
                    const { assert!($voffset + <$vty>::SIZE <= $size) };
                    zerocopy::transmute_ref!(
                        self.0[$voffset..].first_chunk::<{ <$vty>::SIZE }>().unwrap_or(const { &[0; <$vty>::SIZE] })
                    )
                }

                $(#[doc = $vdoc])*
                pub fn $view_mut(&mut self) -> &mut $vty {
                    const { assert!($voffset + <$vty>::SIZE <= $size) };
                    match <$vty as zerocopy::FromBytes>::mut_from_prefix(&mut self.0[$voffset..]) {
                        Ok((view, _)) => view,
                        Err(_) => unreachable!("the structure's size is asserted at build time"),
                    }
                }
            )*)?
        }

        impl Default for $name {
            fn default() -> Self {
                Self::new()
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                let mut s = f.debug_struct(stringify!($name));
                $( s.field(stringify!($field), &format_args!("{:#x}", self.get(Self::$field))); )*
                s.finish()
            }
        }
        )*
    };

    (@field $(#[$fm:meta])* $field:ident $offset:literal $size:expr; [$hi:literal : $lo:literal]) => {
        $(#[$fm])*
        pub const $field: $crate::layout::Field<Self> =
            $crate::layout::Field::new(stringify!($field), $offset, $hi, $lo, $size);
    };
    (@field $(#[$fm:meta])* $field:ident $offset:literal $size:expr; u64) => {
        $(#[$fm])*
        pub const $field: $crate::layout::Field64<Self> =
            $crate::layout::Field64::new(stringify!($field), $offset, $size);
    };
}
pub(crate) use layout;
